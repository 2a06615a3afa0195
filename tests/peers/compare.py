#!/usr/bin/env python3
"""Measures this library beside those that people would use instead, and writes docs/performance.md.

    tests/peers/compare.py --ranks 4,8 --rounds 5 [--install] [--torch PYTHON]

The candidates take turns, round by round, so that what else happens on the machine happens to all
of them; a cell of the table is the median over the rounds. Only rounds in the same state of the
machine are compared: see watch.py. A candidate that is not installed is reported and left out. A
candidate that needs longer than --timeout for a size is stopped; if that happens in the first round,
it is not asked for that size again. Rounds that end with an error or wrong results have failed: cells
tell how many, and if one of this library has, the exit status is 1.
"""

import argparse
import contextlib
import json
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import candidates
import tables
from candidates import REPOSITORY, Plan
from watch import PERIOD, Watch

DOCUMENT = REPOSITORY / "docs" / "performance.md"
CHART = REPOSITORY / "docs" / "performance.svg"

DEFAULT_SIZES = "8,1K,16K,256K,1M,4M,16M,64M,256M"
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class TooSlow(Exception):
    """A candidate did not finish a size in time."""


class Failed(Exception):
    """A candidate ended with an error, or with wrong results."""


def parse_size(text):
    """Bytes of a size such as `64K`."""
    unit = UNITS.get(text[-1:].upper(), 1)
    return int(text if unit == 1 else text[:-1]) * unit


def least_size(operation, ranks):
    """The least size that has data: blocks are whole multiples of 16 bytes, as in nccl-tests."""
    return 1 if operation in ("all_reduce", "broadcast") else 16 * ranks


# Running a candidate


def measure(candidate, plan):
    """Runs a candidate and yields bytes and microseconds."""
    return (measure_reporting if candidate.reports else measure_printing)(candidate, plan)


def measure_reporting(candidate, plan):
    """Runs a program of this library for every size and reads its report."""
    for size in plan.sizes:
        one = Plan(plan.operation, plan.ranks, [size], plan.timeout)
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            command = [*candidate.command(one), "-J", str(report)]
            for _ in lines_of(command, candidate.environment(one), plan.timeout):
                pass
            results = json.loads(report.read_text())["results"]
        # PyTorch and MPI broadcast in place only; everything else that MPI does is out of place.
        row = results[0]["in_place" if plan.operation == "broadcast" else "out_of_place"]
        if row["nwrong"]:
            raise Failed(f"{row['nwrong']} wrong elements")
        yield size, row["time"]


def measure_printing(candidate, plan):
    """Runs a program for all sizes and reads what it prints after each."""
    for line in lines_of(candidate.command(plan), candidate.environment(plan), plan.timeout):
        words = line.split()
        if len(words) < 3 or not words[0].isdigit():
            continue
        if words[2] != "0":
            raise Failed(f"{words[2]} wrong")
        yield int(words[0]), float(words[1])


def lines_of(command, environment, timeout):
    """The lines a program prints. It is stopped when the next one takes longer than `timeout`."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0,
            env={**os.environ, **environment},
        )
        lines = queue.Queue()
        threading.Thread(target=pass_on, args=(process.stdout, lines), daemon=True).start()
        try:
            while (line := lines.get(timeout=timeout)) is not None:
                yield line
            if process.wait(timeout) != 0:
                errors.seek(0)
                raise Failed(f"exit status {process.returncode}: {errors.read()[-500:]}")
        except (queue.Empty, subprocess.TimeoutExpired):
            raise TooSlow(f"nothing for {timeout:g} s") from None
        finally:
            stop(process)


def pass_on(stream, lines):
    """Puts the lines of `stream` into a queue, and None when it ends."""
    for line in stream:
        lines.put(line)
    lines.put(None)


def stop(process):
    """Ends a program with all that it started: asks first, so that a launcher can clean up."""
    for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, None)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue


def run_candidate(candidate, plan):
    """Microseconds by size, of one round, and from when to when each was measured; infinitely many where the candidate is
    too slow, no number where it failed."""
    times = {}
    remaining = plan.sizes
    while remaining:
        part = Plan(plan.operation, plan.ranks, remaining, plan.timeout)
        began = time.monotonic()
        try:
            for size, microseconds in measure(candidate, part):
                ended = time.monotonic()
                times[size] = (microseconds, began, ended)
                began = ended
            missing = []
        except TooSlow:
            missing = [size for size in remaining if size not in times]
            if missing:  # Otherwise all is measured, and only the end took too long.
                times[missing[0]] = (math.inf, began, time.monotonic())
        except Failed as failure:
            note(f"{candidate.name}: {failure}")
            missing = [size for size in remaining if size not in times]
            # If all is measured, what it did last is in doubt.
            times[missing[0] if missing else remaining[-1]] = (math.nan, began, time.monotonic())
        remaining = missing[1:]
    return times


def run_rounds(found, plan, rounds, distance):
    """Samples by candidate and size, as tables.py has them; the candidates take turns. `distance` is asked how far the
    processors were from each other, from when to when."""
    samples = {(candidate.name, size): [] for candidate in found for size in plan.sizes}
    for number in range(rounds):
        for candidate in found:
            began = time.monotonic()
            sizes = [size for size in plan.sizes if not is_too_slow(samples[candidate.name, size])]
            part = Plan(plan.operation, plan.ranks, sizes, plan.timeout)
            times = run_candidate(candidate, part)
            time.sleep(PERIOD)  # A probe after the last size.
            for size, (microseconds, *when) in times.items():
                samples[candidate.name, size].append([microseconds, distance(*when)])
            took = time.monotonic() - began
            note(f"{plan.operation}, {plan.ranks} ranks, round {number + 1}: "
                 f"{candidate.name} {took:.0f} s")
    return samples


def is_too_slow(samples):
    """Whether a candidate did not finish in the first round."""
    return [microseconds for microseconds, _ in samples] == [math.inf]


# The command line


def command_line(arguments):
    """This call as others can repeat it: where Python lies differs from machine to machine."""
    words = ["PYTHON" if word == arguments.torch else word for word in sys.argv[1:]]
    return " ".join(["tests/peers/compare.py", *words])


def note(text):
    """Tells whoever waits how far it is."""
    print(f"# {text}", file=sys.stderr, flush=True)


def parse_arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    numbers = lambda text: [int(number) for number in text.split(",")]
    sizes = lambda text: [parse_size(size) for size in text.split(",")]
    words = lambda text: text.split(",")
    parser.add_argument("--ranks", type=numbers, default=[4, 8], help="numbers of ranks")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=sizes, default=sizes(DEFAULT_SIZES), help="such as 8,64K,1M")
    parser.add_argument("--operations", type=words, default=["all_reduce"],
                        help="some of " + ",".join(tables.FACTORS))
    parser.add_argument("--candidates", type=words, help="some of them only, such as r2ccl,Intel MPI")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for one size")
    parser.add_argument("--install", action="store_true",
                        help="install the MPIs with apt-get, those of Intel and matplotlib with pip "
                             "into a virtual environment (2 GB) below --build")
    parser.add_argument("--torch", metavar="PYTHON", help="a Python that has PyTorch, for Gloo")
    parser.add_argument("--build", default=str(REPOSITORY / "target" / "peers"),
                        help="folder for the programs of the peers")
    parser.add_argument("--json", metavar="FILE", help="add every time to this file, and draw and "
                        "tell what earlier runs have added, too")
    parser.add_argument("--dry", action="store_true", help="print only, leave the document alone")
    arguments = parser.parse_args()
    for given, known, kind in ((arguments.operations, tables.FACTORS, "operation"),
                               (arguments.candidates or (), (*candidates.OWN, *candidates.PEER_LIBRARIES), "candidate")):
        unknown = [word for word in given if word not in known]
        if unknown:
            parser.error(f"no such {kind}: {', '.join(unknown)}; there are {', '.join(known)}")
    return arguments


def main():
    """Measures everything and writes it down."""
    arguments = parse_arguments()
    folder = Path(arguments.build).resolve()
    if arguments.install:
        candidates.install(folder)
    found, missing = candidates.find(folder, arguments.torch)
    if arguments.candidates:
        found = [candidate for candidate in found if candidate.name in arguments.candidates]
    for line in missing:
        note(f"skipped: {line}")
    record = tables.Record.read(arguments.json)
    failed = 0
    with watched(folder) as distance:
        for operation in arguments.operations:
            for ranks in arguments.ranks:
                sizes = [size for size in arguments.sizes if size >= least_size(operation, ranks)]
                plan = Plan(operation, ranks, sizes, arguments.timeout)
                samples = run_rounds(found, plan, arguments.rounds, distance)
                part = record.add(plan, found, samples)
                print(tables.table(part), tables.verdicts([part]), sep="\n\n", flush=True)
                record.write(arguments.json)
                failed += tables.own_failures(part)
    if not arguments.dry:
        write(folder, arguments, record, found, missing)
    if failed:
        sys.exit(f"{failed} rounds of this library failed")


def write(folder, arguments, record, found, missing):
    """Writes the document, and draws its chart."""
    head = tables.circumstances(found, missing, command_line(arguments), arguments)
    chart = draw(folder, record)
    text = [head, *([f"![The same as curves]({chart})"] if chart else []),
            *map(tables.table, record.parts), tables.verdicts(record.parts)]
    tables.write_document("\n\n".join(text), DOCUMENT)
    note(f"{len(missing)} candidates skipped; written to {DOCUMENT.relative_to(REPOSITORY)}")


@contextlib.contextmanager
def watched(folder):
    """What tells how far the processors are from each other, from when to when."""
    try:
        watch = Watch(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        note(f"skipped: whether the processors are near each other: {error}")
        yield lambda begin, end: None
        return
    try:
        yield watch.between
    finally:
        watch.close()


def draw(folder, record):
    """Draws the chart beside the document with a Python that can; returns its name, if it did."""
    for python in (str(folder / "python" / "bin" / "python"), sys.executable):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(record.parts, file)
            file.flush()
            command = [python, str(candidates.PEERS / "chart.py"), file.name, str(CHART)]
            try:
                subprocess.run(command, check=True)
                return CHART.name
            except (OSError, subprocess.CalledProcessError):
                continue
    note("skipped: the chart: no matplotlib; --install gets it")
    return None


if __name__ == "__main__":
    main()
