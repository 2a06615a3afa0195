#!/usr/bin/env python3
"""Measures this library beside Open MPI, MPICH and Gloo, and writes docs/performance.md.

    tests/peers/compare.py --ranks 4,8 --rounds 5 [--install] [--torch PYTHON]

The candidates take turns, round by round, so that what else happens on the machine happens to all
of them; a cell of the table is the median over the rounds. A candidate that is not installed is
reported and left out. A candidate that needs longer than --timeout for a size is stopped; if that
happens in the first round, it is not asked for that size again.
"""

import argparse
import json
import math
import os
import platform
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

PEERS = Path(__file__).resolve().parent
REPOSITORY = PEERS.parent.parent
DOCUMENT = REPOSITORY / "docs" / "performance.md"
PACKAGES = ["openmpi-bin", "libopenmpi-dev", "mpich", "libmpich-dev"]

OURS = "r2ccl"
DEFAULT_SIZES = "8,1K,16K,256K,1M,16M,64M,256M"
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
UNTIMED = 5  # Calls before the timed ones.

# Bytes that are moved over the wire by the busiest rank, per byte of the size.
FACTORS = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1,
    "alltoall": lambda ranks: (ranks - 1) / ranks,
}


class TooSlow(Exception):
    """A candidate did not finish a size in time."""


class Failed(Exception):
    """A candidate ended with an error, or with wrong results."""


@dataclass
class Plan:
    """What is measured in one run of one candidate."""

    operation: str
    ranks: int
    sizes: list  # of bytes
    timeout: float  # seconds without a finished size


@dataclass
class Candidate:
    """A library under measurement, and how it is started."""

    name: str
    measure: Callable  # (candidate, plan), yields (bytes, microseconds)
    command: Callable  # (plan), returns a list of words
    version: str


# What is measured


def parse_size(text):
    """Bytes of a size such as `64K`."""
    unit = UNITS.get(text[-1:].upper(), 1)
    return int(text if unit == 1 else text[:-1]) * unit


def size_name(size):
    """A size as people write it."""
    for letter, unit in reversed(UNITS.items()):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {letter}B"
    return f"{size} B"


def command_line(arguments):
    """This call as others can repeat it: where Python lies differs from machine to machine."""
    words = ["PYTHON" if word == arguments.torch else word for word in sys.argv[1:]]
    return " ".join(["tests/peers/compare.py", *words])


def iterations(size):
    """Timed calls of a size: fewer where each of them takes long."""
    if size <= 1 << 10:
        return 5000
    if size <= 64 << 10:
        return 200
    if size <= 1 << 20:
        return 50
    return 20 if size <= 16 << 20 else 5


def least_size(operation, ranks):
    """The least size that has data: blocks are whole multiples of 16 bytes, as in nccl-tests."""
    return 1 if operation in ("all_reduce", "broadcast") else 16 * ranks


# The candidates


def find_candidates(arguments):
    """The candidates that can run here, and a line about each that cannot."""
    found, missing = [our_candidate()], []
    folder = Path(arguments.build)
    folder.mkdir(parents=True, exist_ok=True)
    for find in (open_mpi, mpich):
        try:
            found.append(find(folder))
        except (OSError, subprocess.CalledProcessError) as error:
            missing.append(f"{find.__name__}: {error}")
    if arguments.torch:
        found.append(gloo(arguments.torch))
    else:
        missing.append("gloo: no --torch PYTHON was given")
    return found, missing


def our_candidate():
    """This library: built for release, one run of a perf binary per size."""
    build = ["cargo", "build", "--release", "-p", "ccl-tests", "--bins"]
    output = text_of([*build, "--message-format=json"], cwd=REPOSITORY)
    messages = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    programs = {
        message["target"]["name"]: message["executable"]
        for message in messages
        if message.get("executable")
    }

    def command(plan):
        size = str(plan.sizes[0])
        return [
            programs[f"{plan.operation}_perf"],
            *("--ranks", str(plan.ranks), "-b", size, "-e", size),
            *("-n", str(iterations(plan.sizes[0])), "-w", str(UNTIMED), "-c", "1"),
        ]

    return Candidate(OURS, measure_ours, command, "commit " + commit())


def open_mpi(folder):
    """Open MPI. When there are more ranks than cores, they must yield, and are bound as ours are."""
    program = compile_mpi("mpicc.openmpi", folder)
    launch = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"]

    def command(plan):
        crowded = plan.ranks > os.cpu_count()
        sharing = ["--mca", "mpi_yield_when_idle", "1", "--map-by", "core"]
        sharing += ["--bind-to", "core:overload-allowed"]
        return [*launch, *(sharing if crowded else []), "-n", str(plan.ranks), program, *peer_arguments(plan)]

    version = first_line(["mpirun.openmpi", "--version"]).split()[-1]
    return Candidate("Open MPI", measure_peer, command, version)


def mpich(folder):
    """MPICH."""
    program = compile_mpi("mpicc.mpich", folder)

    def command(plan):
        return ["mpirun.mpich", "-n", str(plan.ranks), program, *peer_arguments(plan)]

    version = text_of(["mpichversion"]).split("\n")[0].split(":")[-1].strip()
    return Candidate("MPICH", measure_peer, command, version)


def gloo(python):
    """Gloo, as PyTorch contains it."""

    def command(plan):
        script = str(PEERS / "gloo_perf.py")
        return [python, script, str(plan.ranks), *peer_arguments(plan)]

    version = first_line([python, "-c", "import torch; print(torch.__version__)"])
    return Candidate("Gloo", measure_peer, command, f"in PyTorch {version}")


def compile_mpi(compiler, folder):
    """The program of mpi_perf.c for the MPI to which `compiler` belongs."""
    program = str(folder / compiler.replace("mpicc", "mpi_perf"))
    flags = ["-O3", "-Wall", "-Wextra", "-o", program]
    subprocess.run([compiler, *flags, str(PEERS / "mpi_perf.c")], check=True)
    return program


def peer_arguments(plan):
    """The command line that mpi_perf.c and gloo_perf.py have in common."""
    sizes = [f"{size}:{iterations(size)}" for size in plan.sizes]
    return [plan.operation, str(UNTIMED), *sizes]


def install():
    """Installs the MPIs; needs root on a Debian system."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-q"], check=True)
    subprocess.run(["apt-get", "install", "-qy", *PACKAGES], check=True, env=environment)


# Running a candidate


def measure_ours(candidate, plan):
    """Runs a perf binary for every size and reads its report."""
    for size in plan.sizes:
        one = Plan(plan.operation, plan.ranks, [size], plan.timeout)
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            for _ in lines_of([*candidate.command(one), "-J", str(report)], plan.timeout):
                pass
            results = json.loads(report.read_text())["results"]
        # PyTorch and MPI broadcast in place only; everything else that MPI does is out of place.
        row = results[0]["in_place" if plan.operation == "broadcast" else "out_of_place"]
        if row["nwrong"]:
            raise Failed(f"{row['nwrong']} wrong elements")
        yield size, row["time"]


def measure_peer(candidate, plan):
    """Runs a peer for all sizes and reads what it prints after each."""
    for line in lines_of(candidate.command(plan), plan.timeout):
        words = line.split()
        if len(words) != 3 or not words[0].isdigit():
            continue
        if words[2] != "0":
            raise Failed(f"{words[2]} wrong elements")
        yield int(words[0]), float(words[1])


def lines_of(command, timeout):
    """The lines a program prints. It is stopped when the next one takes longer than `timeout`."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0
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
            raise TooSlow from None
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
    """Microseconds by size, of one round; infinitely many where the candidate is too slow."""
    times = {}
    remaining = plan.sizes
    while remaining:
        part = Plan(plan.operation, plan.ranks, remaining, plan.timeout)
        try:
            for size, microseconds in candidate.measure(candidate, part):
                times[size] = microseconds
            missing = []
        except TooSlow:
            missing = [size for size in remaining if size not in times]
            if missing:  # Otherwise all is measured, and only the end took too long.
                times[missing[0]] = math.inf
        remaining = missing[1:]
    return times


def run_rounds(candidates, plan, rounds):
    """Lists of microseconds by candidate and size; the candidates take turns."""
    samples = {(c.name, size): [] for c in candidates for size in plan.sizes}
    for number in range(rounds):
        for candidate in candidates:
            began = time.monotonic()
            sizes = [size for size in plan.sizes if samples[candidate.name, size] != [math.inf]]
            part = Plan(plan.operation, plan.ranks, sizes, plan.timeout)
            try:
                times = run_candidate(candidate, part)
            except Failed as failure:
                note(f"{candidate.name}: {failure}")
                continue
            for size, microseconds in times.items():
                samples[candidate.name, size].append(microseconds)
            took = time.monotonic() - began
            note(f"{plan.operation}, {plan.ranks} ranks, round {number + 1}: "
                 f"{candidate.name} {took:.0f} s")
    return samples


# The document


def table(candidates, plan, samples):
    """A Markdown table of one collective with one number of ranks."""
    names = [candidate.name for candidate in candidates]
    peers = [name for name in names if name != OURS]
    head = ["size", *names, f"{OURS} busbw", f"best peer / {OURS}", "rounds, least to most"]
    lines = [f"### {plan.operation}, {plan.ranks} ranks", "", row(head), row(["---"] * len(head))]
    for size in plan.sizes:
        medians = {name: median(samples[name, size]) for name in names}
        own = medians[OURS]
        measured = [medians[name] for name in peers if not math.isnan(medians[name])]
        best = min(measured, default=math.nan)
        bandwidth = size * FACTORS[plan.operation](plan.ranks) / own / 1e3
        comparable = math.isfinite(own) and math.isfinite(best)
        lines.append(row([
            size_name(size),
            *(cell(plan, size, medians[name]) for name in names),
            f"{bandwidth:.2f} GB/s" if math.isfinite(own) else "-",
            f"{best / own:.2f}" if comparable else "-",
            spread(samples[OURS, size]),
        ]))
    return "\n".join(lines)


def row(cells):
    """A line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def median(values):
    """The median; no number where nothing was measured."""
    return statistics.median(values) if values else math.nan


def cell(plan, size, microseconds):
    """The time of a candidate; more than what was granted per call, if it was too slow."""
    if microseconds == math.inf:
        return f"> {duration(plan.timeout / iterations(size) * 1e6)} µs"
    return "failed" if math.isnan(microseconds) else f"{duration(microseconds)} µs"


def duration(microseconds):
    """Microseconds with three significant digits at least."""
    digits = 2 if microseconds < 10 else 1 if microseconds < 100 else 0
    return f"{microseconds:.{digits}f}"


def spread(values):
    """Least and most of the rounds, in microseconds."""
    finite = [value for value in values if math.isfinite(value)]
    return f"{duration(min(finite))} – {duration(max(finite))}" if finite else "-"


def circumstances(candidates, missing, arguments):
    """When, where, of what, and how often was measured."""
    load = os.getloadavg()[0]
    lines = [
        f"- {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, commit {commit()}",
        f"- {processor()}, {os.cpu_count()} cores, Linux {platform.release()}; "
        f"load average at the end {load:.1f}",
        f"- `{command_line(arguments)}`",
        f"- median of {arguments.rounds} rounds; {UNTIMED} calls before the timed ones; timed calls "
        f"per round: {', '.join(f'{size_name(s)} {iterations(s)}' for s in arguments.sizes)}",
    ]
    lines += [f"- {candidate.name}: {candidate.version}" for candidate in candidates]
    lines += [f"- not measured: {line}" for line in missing]
    for candidate in candidates:
        plan = Plan(arguments.operations[0], arguments.ranks[0], arguments.sizes[:1], 0)
        words = [Path(word).name if "/" in word else word for word in candidate.command(plan)]
        lines.append(f"- {candidate.name} runs `{' '.join(words)}` …")
    return "\n".join(lines)


def write_document(text, path):
    """Replaces what is between the markers of the document."""
    begin, end = "<!-- measured: begin -->", "<!-- measured: end -->"
    document = path.read_text()
    before, rest = document.split(begin)
    after = rest.split(end)[1]
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


# The machine


def text_of(command, **options):
    """What a program prints; its failure is an exception."""
    return subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, **options
    ).stdout


def first_line(command):
    """The first line a program prints."""
    return text_of(command).split("\n")[0]


def commit():
    """The commit that is checked out, and whether there are changes on top of it."""
    if not shutil.which("git") or not (REPOSITORY / ".git").exists():
        return "unknown"
    name = first_line(["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"])
    changed = text_of(["git", "-C", str(REPOSITORY), "status", "--porcelain", "-uno"])
    return name + (" with changes" if changed else "")


def processor():
    """The name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


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
                        help="some of " + ",".join(FACTORS))
    parser.add_argument("--timeout", type=float, default=60, help="seconds for one size")
    parser.add_argument("--install", action="store_true", help="install the MPIs with apt-get")
    parser.add_argument("--torch", metavar="PYTHON", help="a Python that has PyTorch, for Gloo")
    parser.add_argument("--build", default=str(REPOSITORY / "target" / "peers"),
                        help="folder for the programs of the peers")
    parser.add_argument("--dry", action="store_true", help="print only, leave the document alone")
    arguments = parser.parse_args()
    unknown = set(arguments.operations) - set(FACTORS)
    if unknown:
        parser.error(f"no such operation: {', '.join(unknown)}")
    return arguments


def main():
    """Measures everything and writes it down."""
    arguments = parse_arguments()
    if arguments.install:
        install()
    candidates, missing = find_candidates(arguments)
    for line in missing:
        note(f"skipped: {line}")
    tables = []
    for operation in arguments.operations:
        for ranks in arguments.ranks:
            sizes = [size for size in arguments.sizes if size >= least_size(operation, ranks)]
            plan = Plan(operation, ranks, sizes, arguments.timeout)
            samples = run_rounds(candidates, plan, arguments.rounds)
            tables.append(table(candidates, plan, samples))
            print(tables[-1], flush=True)
    text = "\n\n".join([circumstances(candidates, missing, arguments), *tables])
    if not arguments.dry:
        write_document(text, DOCUMENT)
        note(f"{len(missing)} candidates skipped; written to {DOCUMENT.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
