#!/usr/bin/env python3
"""Finds out in two minutes whether this library has become slower.

A time says little on another day or beside other work, so every case is held against a yardstick that is measured
beside it (kernels/examples/yardsticks): as many threads as there are ranks, each of which copies as many bytes to a
neighbour through shared memory with memcpy, and then computes for about as long as a small call; or bytes that go to and
fro over loopback; or, for 16 MB, memcpy alone. Cases take turns, round by round. The ratio of the medians over the rounds,
for 16 MB of the least times, must not exceed

- the bar of the case, on every machine, and
- the ratio of the release before, times a tolerance, on the machine where that was measured.

Both are in regression.json beside this program. A case that exceeds one is measured again, some times: it is slow only if
it is slow each time, at least once while others used little of the processors. Where they never did, nobody can tell. Prints
a line for each; the exit status is 1 if one is slow, else 2 if one is in doubt.

    tests/measure/regression.py [--rounds 7] [--cases NAME,... | --store]

test_regression.py plants regressions, and this has to find them.
"""

import argparse
import fnmatch
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
STORED = Path(__file__).resolve().with_suffix(".json")

SMALL, MIDDLE, LARGE = 8, 64 << 10, 16 << 20
TCP_BYTES = 1 << 20
NAMES = {SMALL: "8B", MIDDLE: "64K", LARGE: "16M"}
CALLS = {SMALL: 4000, MIDDLE: 400, LARGE: 6, TCP_BYTES: 20}
# Calls before: more than the longest of the library's first trials takes; what later ones find out does not count much. One more
# is added by the programs.
UNTIMED = {SMALL: 90, MIDDLE: 90, LARGE: 40, TCP_BYTES: 40}
# So many multiplications, one after the other, take about as long as the instructions of a small call.
MULTIPLICATIONS = 300
OPERATIONS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall"]
# A case is slow above so many times the stored ratio. Much depends on luck where ranks share processors, and on the
# neighbours where the memory is the limit: virtual processors that move closer together or apart halve its bandwidth or
# double it, and what goes from one to the other does the opposite.
TOLERANCES = {SMALL: 1.25, MIDDLE: 1.2, LARGE: 1.8, TCP_BYTES: 1.4}
CROWDED_TOLERANCES = {SMALL: 2.0, MIDDLE: 1.8, LARGE: 2.4}
# A bar is so much above what was measured when it was set.
ROOM = 2.0
ATTEMPTS = 5
# More attempts than this only if they begin in time.
SURE_ATTEMPTS, LAST_ATTEMPT_SECONDS = 3, 80
# Rounds of what is written down, over those of a check.
CARE = 2
# Others may use so much of the processors while a case is found slow.
MOST_DISTURBED = 0.25
# A program that takes longer than this hangs.
MOST_SECONDS = 60


@dataclass(frozen=True)
class Case:
    """Something that is measured, and beside what."""

    name: str
    bytes: int
    ranks: int
    yardstick: tuple  # WHAT:BYTES:CALLS of what is added up
    operation: str = ""  # none: another yardstick
    hosts: int = 1
    flags: tuple = ()  # of the program
    other: tuple = ()  # that yardstick


def all_cases():
    """All of them, by name."""
    cases = [
        Case(f"{operation}/{NAMES[size]}/{ranks}", size, ranks, yardstick_of(size), operation)
        for ranks in (2, 4) for operation in OPERATIONS for size in (SMALL, MIDDLE, LARGE)
    ]
    # Memory of the library, which peers reach in place.
    for operation, ranks in (("all_reduce", 2), *((operation, 4) for operation in OPERATIONS), ("all_reduce", 8)):
        name = f"{operation}/{NAMES[LARGE]}/{ranks}/registered"
        cases.append(Case(name, LARGE, ranks, yardstick_of(LARGE), operation, flags=("-R", "1")))
    name = f"all_reduce/{NAMES[LARGE]}/4/registered/avg"
    cases.append(Case(name, LARGE, 4, yardstick_of(LARGE), "all_reduce", flags=("-R", "1", "-o", "avg")))
    cases.append(Case(f"all_reduce/{NAMES[MIDDLE]}/8", MIDDLE, 8, yardstick_of(MIDDLE), "all_reduce"))
    fro = (f"tcp:{TCP_BYTES}:{CALLS[TCP_BYTES]}",)
    cases.append(Case("all_reduce/1M/2/tcp", TCP_BYTES, 2, fro, "all_reduce", hosts=2))
    copy, add = (f"copy:{MIDDLE}:5000",), (f"sum:{MIDDLE}:5000",)
    cases.append(Case("kernel/sum/f32", MIDDLE, 1, copy, other=add))
    return {case.name: case for case in cases}


def yardstick_of(size):
    """What a collective of this size on one host is held against: bytes, and instructions."""
    if size == LARGE:
        return (f"copy:{size}:{CALLS[size]}",)
    return f"exchange:{size}:{CALLS[size]}", f"compute:{MULTIPLICATIONS}:{CALLS[SMALL]}"


# Measuring


class Programs:
    """The programs of this repository, built for release, or those that are in a folder."""

    def __init__(self, folder=None):
        if folder:
            self.paths = {path.name: str(path) for path in Path(folder).resolve().iterdir()}
            if "yardsticks" not in self.paths:
                sys.exit(f"{folder} has no `yardsticks`, which cargo builds into the folder `examples` of its own: "
                         "put them beside the programs, or leave out --programs")
            return
        wanted = (["-p", "ccl-tests", "--bins"], ["-p", "ccl-kernels", "--example", "yardsticks"])
        self.paths = {}
        for words in wanted:
            command = ["cargo", "build", "--release", "--message-format=json", *words]
            lines = text_of(command, cwd=REPOSITORY, timeout=None).splitlines()
            for message in (json.loads(line) for line in lines if line.startswith("{")):
                if message.get("executable"):
                    self.paths[message["target"]["name"]] = message["executable"]

    def measure(self, case):
        """Microseconds of a case and of its yardstick, measured one after the other."""
        beside = self.yardstick(case.ranks, case.yardstick)
        own = self.yardstick(case.ranks, case.other) if case.other else self.collective(case)
        return own, beside

    def yardstick(self, ranks, words):
        """Microseconds of yardsticks, added up."""
        lines = [line.split() for line in text_of([self.paths["yardsticks"], str(ranks), *words]).splitlines()]
        if any(fields[2] != "0" for fields in lines):
            sys.exit(f"yardsticks {ranks} {' '.join(words)}: wrong results")
        return sum(float(fields[1]) for fields in lines)

    def collective(self, case):
        """Microseconds of a collective. A broadcast is in place, as in most programs."""
        place = "in-place" if case.operation == "broadcast" else "out-of-place"
        # Blocks are whole multiples of 16 bytes.
        divided = case.operation not in ("all_reduce", "broadcast")
        size = str(max(case.bytes, 16 * case.ranks) if divided else case.bytes)
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            command = [
                self.paths[f"{case.operation}_perf"], "--ranks", str(case.ranks), "-b", size, "-e", size,
                "-n", str(CALLS[case.bytes]), "-w", str(UNTIMED[case.bytes]), "--warm-up-form", place, "-c", "1", "-J", str(report),
                *case.flags, *(["--hosts", str(case.hosts)] if case.hosts > 1 else []),
            ]
            text_of(command)
            row = json.loads(report.read_text())["results"][0]
        row = row[place.replace("-", "_")]
        if row["nwrong"]:
            sys.exit(f"{' '.join(command)}: wrong results")
        return row["time"]


def text_of(command, cwd=None, timeout=MOST_SECONDS):
    """What a program prints; its failure ends this one."""
    try:
        return subprocess.run(command, cwd=cwd, timeout=timeout, stdout=subprocess.PIPE, check=True, text=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(str(error))


def ratios(programs, cases, rounds):
    """For every case, the time over that of its yardstick; the cases take turns."""
    samples = {case: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            samples[case].append(programs.measure(case))
    found = {}
    for case, pairs in samples.items():
        # Where the memory is the limit, neighbours only take away from it.
        typical = min if case.bytes == LARGE else statistics.median
        own, beside = (typical(times) for times in zip(*pairs))
        found[case.name] = own / beside
    return found


def is_crowded(case):
    """Whether ranks share processors."""
    return case.ranks > len(os.sched_getaffinity(0))


class Quiet:
    """How much of the processors others have used since this was made."""

    def __init__(self):
        self.busy, self.own = busy_seconds(), own_seconds()
        self.began = time.monotonic()

    def others(self):
        """Their share of all processors."""
        taken = busy_seconds() - self.busy - (own_seconds() - self.own)
        return max(0.0, taken / (time.monotonic() - self.began) / os.cpu_count())


def busy_seconds():
    """Processor time that was used or stolen, by anybody."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    """Processor time of the programs that were started here."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# Judging


def limits(case, stored):
    """What the ratio of a case must not exceed, and why."""
    known = stored["cases"].get(case.name)
    if not known:
        return []
    found = [(known["bar"], "the bar")]
    if stored["machine"] == machine():
        tolerance = (CROWDED_TOLERANCES if is_crowded(case) else TOLERANCES)[case.bytes]
        found.append((known["ratio"] * tolerance, f"{tolerance} × {known['ratio']:.3g} of {stored['commit']}"))
    return found


def exceeded(case, ratio, stored):
    """What a ratio exceeds, in words; nothing if all is well."""
    return [f"{limit:.3g} ({why})" for limit, why in limits(case, stored) if ratio > limit]


def judge(programs, cases, stored, rounds):
    """Measures and prints a line for each case; returns those that exceed a limit, and whether that is sure."""
    suspects, found, began, was_quiet = cases, {}, time.monotonic(), False
    for attempt in range(1, ATTEMPTS + 1):
        quiet = Quiet()
        for name, ratio in ratios(programs, suspects, rounds).items():
            found.setdefault(name, []).append(ratio)
        suspects = [case for case in suspects if exceeded(case, found[case.name][-1], stored)]
        others = quiet.others()
        was_quiet |= others <= MOST_DISTURBED
        print(f"# attempt {attempt}: {time.monotonic() - quiet.began:.0f} s, others used {100 * others:.0f} % of "
              f"the processors, {len(suspects)} to look at again", file=sys.stderr)
        is_late = attempt >= SURE_ATTEMPTS and time.monotonic() - began > LAST_ATTEMPT_SECONDS
        if not suspects or is_late:
            break
    for case in cases:
        line(case, found[case.name], stored, case in suspects and ("SLOW" if was_quiet else "doubt"))
    return suspects, was_quiet


def line(case, found, stored, complaint):
    """The verdict of a case."""
    ratio = min(found)
    known = stored["cases"].get(case.name)
    before = f", {ratio / known['ratio']:.2f} × {stored['commit']}" if known else ""
    verdict = complaint or ("ok" if known else "new")
    reason = f"; more than {', '.join(exceeded(case, ratio, stored))}" if complaint else ""
    tries = f", {len(found)} attempts" if len(found) > 1 else ""
    print(f"{verdict:5} {case.name:22} {ratio:7.3f} of the yardstick{before}{tries}{reason}")


def machine():
    """What ratios depend on. Hypervisors give several generations of processors one name, so its numbers are told too."""
    rows = (row.split(":", 1) for row in Path("/proc/cpuinfo").read_text().splitlines() if ":" in row)
    first = {}
    for key, value in rows:
        first.setdefault(key.strip(), value.strip())
    name = first.get("model name", platform.machine())
    numbers = "".join(f", {key} {first[key]}" for key in ("cpu family", "model") if key in first)
    return f"{name}{numbers}, {len(os.sched_getaffinity(0))} cores"


def store(cases, found, stored, file):
    """Writes ratios for the next release; a bar is set once, and stays until somebody edits it."""
    commit = text_of(["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]).strip()
    known = stored["cases"]
    bar = lambda name: known[name]["bar"] if name in known else float(f"{found[name] * ROOM:.2g}")
    # All are of this commit and this machine: what was not measured now is not kept.
    new = {case.name: {"ratio": float(f"{found[case.name]:.3g}"), "bar": bar(case.name)} for case in cases}
    head = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": commit, "machine": machine()}
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in new.items())
    file.write_text(f"{json.dumps(head, indent=1)[:-2]},\n \"cases\": {{\n{rows}\n }}\n}}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", default="*", help="names or patterns, such as all_reduce/*; not with --store")
    parser.add_argument("--programs", metavar="FOLDER", help="perf programs and yardsticks that are built already")
    parser.add_argument("--stored", metavar="FILE", type=Path, default=STORED, help="bars and ratios of the release before")
    parser.add_argument("--store", action="store_true", help="write the ratios down for the next release")
    options = parser.parse_args()
    if options.store and options.cases != "*":
        parser.error("--store writes down the ratios of all cases, which are of one commit and one machine: leave out --cases")
    cases = {}
    for word in options.cases.split(","):
        matching = {case.name: case for case in all_cases().values() if fnmatch.fnmatch(case.name, word)}
        if not matching:
            parser.error(f"--cases {word}: no case has such a name, as {', '.join(list(all_cases())[:3])} have")
        cases |= matching
    cases = list(cases.values())
    stored = {"date": "", "commit": "", "machine": "", "cases": {}}
    if options.stored.exists():
        stored = json.loads(options.stored.read_text())
    elif not options.store:
        parser.error(f"--stored {options.stored}: there is no such file; --store makes one")
    programs = Programs(options.programs)
    if options.store:
        store(cases, ratios(programs, cases, CARE * options.rounds), stored, options.stored)
        return
    print(f"# ratios of {stored['date']}, commit {stored['commit']}, {stored['machine']}")
    if stored["machine"] != machine():
        print(f"# this is another machine ({machine()}): only bars are judged")
    suspects, is_sure = judge(programs, cases, stored, options.rounds)
    print(f"# {len(cases) - len(suspects)} ok, {len(suspects)} "
          f"{'slow' if is_sure or not suspects else 'in doubt: others were too busy'}")
    sys.exit(0 if not suspects else 1 if is_sure else 2)


if __name__ == "__main__":
    main()
