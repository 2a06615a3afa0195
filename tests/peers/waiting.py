#!/usr/bin/env python3
"""Measures what it costs to wait for a rank that computes, beside other libraries.

    tests/peers/waiting.py --ranks 2,4,8 --rounds 3 [--build FOLDER]

Rank 0 computes while all others wait for it in an AllReduce of one float (waiting.h). The candidates of compare.py that C
programs call take turns, with the same settings as there. Prints tables in Markdown, medians over the rounds: how much of a
processor a rank that waits uses, how many times as long the computation takes because of it, and how long the call takes the
rank for which the others have waited.
"""

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import candidates
import compare
from candidates import LIMITS, OURS, REGISTERED

# Those that are not called from C.
LEFT_OUT = (OURS, REGISTERED, *LIMITS.values(), "Gloo")
# Milliseconds of computation, and calls.
CASES = {1000: 3, 10: 50, 1: 200}
# Without a line.
MOST_SECONDS = 120


@dataclass
class Waiting(candidates.Plan):
    """A run in which ranks wait."""

    def arguments(self):
        return ["waiting", *(f"{milliseconds}:{CASES[milliseconds]}" for milliseconds in self.sizes)]


def measure(candidate, plan):
    """Lists of numbers as waiting.h has them, by milliseconds."""
    # Some libraries print warnings between them.
    lines = (line.split() for line in compare.lines_of(candidate.command(plan), candidate.environment(plan), plan.timeout))
    rows = [words for words in lines if words and words[0].isdigit()]
    if any(row[4] != "0" for row in rows):
        sys.exit(f"{candidate.name}: wrong results")
    return {int(row[0]): [float(field) for field in row[1:4]] for row in rows}


def table(ranks, found, samples):
    """A Markdown table of one number of ranks."""
    lines = [f"### {ranks} ranks", "", "| rank 0 computes for | " + " | ".join(each.name for each in found) + " |",
             "| --- " * (1 + len(found)) + "|"]
    for milliseconds in CASES:
        cells = []
        for candidate in found:
            rows = samples[candidate.name, milliseconds]
            if not rows:
                cells.append("failed")
                continue
            used, times, late = (statistics.median(column) for column in zip(*rows))
            cells.append(f"{used:.1f} %, {times:.2f}, {late:.0f} µs")
        lines.append(f"| {milliseconds} ms | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    """Measures and prints everything."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser.add_argument("--ranks", type=numbers, default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--build", type=Path, default=candidates.REPOSITORY / "target" / "peers",
                        help="folder for the programs of the peers; compare.py --install gets them")
    options = parser.parse_args()
    found, missing = candidates.find(options.build.resolve(), None)
    found = [candidate for candidate in found if candidate.name not in LEFT_OUT]
    for line in missing:
        compare.note(f"skipped: {line}")
    for ranks in options.ranks:
        samples = {(candidate.name, milliseconds): [] for candidate in found for milliseconds in CASES}
        for _ in range(options.rounds):
            for candidate in found:
                try:
                    rows = measure(candidate, Waiting("waiting", ranks, list(CASES), MOST_SECONDS))
                except (OSError, compare.Failed, compare.TooSlow) as error:
                    compare.note(f"{candidate.name}: {error}")
                    continue
                for milliseconds, row in rows.items():
                    samples[candidate.name, milliseconds].append(row)
        print(table(ranks, found, samples), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
