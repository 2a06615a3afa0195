#!/usr/bin/env python3
"""Trains a model on hosts that lose rails, with this library and with others.

On the testbed (see docs/testbed.md; needs root), one rank on every host, a small GPT with DDP
(python/examples/ddp_train.py). While this library trains, every rail is cut once and healed: those of
even numbers at host 0, those of odd numbers at host 1, at random moments of given steps. Afterwards the
losses of all steps and the parameters are compared, to the bit, with those of a run without a fault.
Gloo, and Open MPI with AllReduces in place of a model, lose one rail under the same rules; PyTorch's
packages have no backend for MPI. Prints Markdown tables, or writes them into docs/pytorch.md::

    tests/measure/training.py --python VENV/bin/python --hosts 2,3 --rounds 3 [--write]

``--python`` is an interpreter that has PyTorch and the package r2ccl. A peer that does not make a step
for ``--patience`` seconds is stopped, and hangs for the purpose of the table. Peers that are not
installed are reported and left out. Ends with 1 if a run of this library did not end, or not alike.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import json
import os
import platform
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "tests" / "peers"))
sys.dont_write_bytecode = True
from candidates import commit, compile_mpi, first_line  # noqa: E402
from compare import note, stop  # noqa: E402
from tables import processor, write_document  # noqa: E402
from training_tables import LEAD_STEPS, OURS, Act, Order, Result, Run, Step, cuts_of, faults, outcomes  # noqa: E402

DOCUMENT = REPOSITORY / "docs" / "pytorch.md"
EXAMPLE = REPOSITORY / "python" / "examples" / "ddp_train.py"
# Without it plans for fewer rails may add in another order; with two ranks there is only one.
ORDER_SETTING = ("R2CCL_ALGO", "allreduce:two_shot")
# Small: two processors compute for all hosts.
MODEL = "--width 128 --layers 4 --batch 4 --context 32"
# What Open MPI reduces twice for a line of its output: about the gradients of the model.
MPI_BYTES = 4 << 20
# Far more than any run needs; a run that stands still is stopped long before.
RUN_LIMIT = "30m"
# PyTorch is imported, and the ranks meet, before the first step.
START_SECONDS = 600
TELL_SECONDS = 20
PREPARE_SECONDS = 1800
PR_SET_PDEATHSIG = 1
RECORD = "record"
ERRORS = "errors"
MPI_TOOLS = ("mpirun.openmpi", "mpicc.openmpi", "nsenter")

# Host 0 runs a command when the others can be entered; these wait until it is over.
MPI_HOST = """
folder=$1; shift
if [ "$RANK" != 0 ]; then
    echo $$ >"$folder/draft.$RANK" && mv "$folder/draft.$RANK" "$folder/10.255.0.$((RANK + 1))"
    while [ ! -e "$folder/over" ]; do sleep 0.1; done
    exit 0
fi
until [ "$(ls "$folder" | grep -c '^10[.]')" -eq $((WORLD_SIZE - 1)) ]; do sleep 0.1; done
"$@"
status=$?
touch "$folder/over"
exit $status
"""

# What ssh would do: AGENT ADDRESS WORD... runs the words, as a shell reads them, on the host.
MPI_AGENT = """#!/bin/sh
address=$1; shift
exec nsenter --target "$(cat "${0%/*}/$address")" --net --uts --mount sh -c "$*"
"""


@dataclass(frozen=True)
class Line:
    """What rank 0 said, and when that was read."""

    text: str
    at_ns: int


@dataclass(frozen=True)
class Program:
    """What runs on every host, and how its steps are read."""

    name: str
    command: Callable[[Path], list[str]]  # in a folder of its own
    environment: dict[str, str]
    step: re.Pattern[str]  # a line of rank 0 that ends a step


# What is measured


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="with PyTorch and r2ccl")
    parser.add_argument("--build", default="target/release", help="folder of the binaries")
    parser.add_argument("--hosts", type=numbers, default=[2, 3], help="such as 2,3")
    parser.add_argument("--rails", type=int, default=4, help="of every host")
    parser.add_argument("--rate", default="200mbit", help="of every rail")
    parser.add_argument("--rounds", type=int, default=3, help="runs without and with faults")
    parser.add_argument("--pause", type=int, default=25, help="steps between two faults or heals")
    parser.add_argument("--faults", type=words, default=["silent", "carrier"],
                        help="kinds of faults, in turn")
    parser.add_argument("--peers", type=words, default=["gloo", "mpi"], help="some of gloo,mpi")
    parser.add_argument("--patience", type=float, default=60, help="seconds without a step")
    parser.add_argument("--model", type=str.split, default=MODEL.split(),
                        help=f"options of ddp_train.py, in one word: '{MODEL}'")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of faults")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/pytorch.md")
    options = parser.parse_args()
    if not 2 <= options.rails:
        parser.error("--rails must be at least 2")
    if min(options.hosts) < 2:
        parser.error("--hosts must be at least 2")
    return options


def numbers(text: str) -> list[int]:
    """Numbers separated by commas."""
    return [int(number) for number in text.split(",")]


def words(text: str) -> list[str]:
    """Words separated by commas."""
    return [word for word in text.split(",") if word]


def every_rail_once(options: argparse.Namespace) -> list[Order]:
    """In turn: a cut at host 0, one of another rail at host 1, and the return of both."""
    orders: list[Order] = []
    for first in range(0, options.rails - 1, 2):
        cables = [(options.faults[rail % len(options.faults)], rail % 2, rail) for rail in (first, first + 1)]
        for turn in ("cut", "heal"):
            for cable in cables:
                orders.append(Order(LEAD_STEPS + options.pause * (len(orders) + 1), turn, *cable))
    return orders


def one_cut(options: argparse.Namespace) -> list[Order]:
    """Rail 0 of host 0 is lost for good."""
    return [Order(LEAD_STEPS + options.pause, "cut", options.faults[0], 0, 0)]


def steps_of(options: argparse.Namespace) -> int:
    """Steps of every run: after the last order there is a pause as after all others."""
    last: int = every_rail_once(options)[-1].after_steps
    return last + int(options.pause)


# The programs


def programs(options: argparse.Namespace, hosts: int, folder: Path) -> tuple[list[Program], list[str]]:
    """This library, the peers that can run here, and a line about each that cannot."""
    everything = list(range(options.rails))
    found, missing = [training(options, hosts, OURS, OURS, everything)], []
    if "gloo" in options.peers:
        found.append(training(options, hosts, "gloo", "Gloo, rail 0", [0]))
        found.append(training(options, hosts, "gloo", "Gloo, all rails", everything))
    if "mpi" in options.peers:
        lacking = [tool for tool in MPI_TOOLS if shutil.which(tool) is None]
        if lacking:
            missing.append(f"Open MPI: there is no {', '.join(lacking)}")
        else:
            found.append(open_mpi(options, hosts, compile_mpi("mpicc.openmpi", folder)))
    return found, missing


def training(options: argparse.Namespace, hosts: int, backend: str, name: str, rails: list[int]) -> Program:
    """The example, with this library or with Gloo on some of the rails."""
    environment = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if backend == "gloo":
        environment["GLOO_SOCKET_IFNAME"] = interfaces(rails)
    elif hosts > 2:
        environment.update([ORDER_SETTING])

    def command(folder: Path) -> list[str]:
        return [
            os.path.abspath(options.python), str(EXAMPLE), "--backend", backend, "--log-every", "1",
            "--steps", str(steps_of(options)), "--record", str(folder / RECORD), *options.model,
        ]

    return Program(name, command, environment, re.compile(r"step +\d+ "))


def open_mpi(options: argparse.Namespace, hosts: int, program: str) -> Program:
    """AllReduces of Open MPI over all rails; every line is one that was checked, and one that was timed."""
    addresses = ",".join(f"10.255.0.{host + 1}" for host in range(hosts))

    def command(folder: Path) -> list[str]:
        agent = folder / "agent"
        agent.write_text(MPI_AGENT)
        agent.chmod(0o700)
        parameters = {
            "plm": "rsh", "plm_rsh_agent": str(agent), "oob_tcp_if_include": "manage0",
            "orte_tmpdir_base": str(folder), "pml": "ob1", "btl": "self,tcp",
            "btl_tcp_if_include": interfaces(range(options.rails)), "mpi_yield_when_idle": "1",
        }
        return [
            "sh", "-c", MPI_HOST, "sh", str(folder), "mpirun.openmpi", "--allow-run-as-root",
            "--host", addresses, "-n", str(hosts), "--bind-to", "none",
            *(word for item in parameters.items() for word in ("--mca", *item)),
            program, "all_reduce", *[f"{MPI_BYTES}:0:1"] * steps_of(options),
        ]

    return Program("Open MPI, all rails", command, {}, re.compile(r"\d+ [\d.]+ \d+$"))


def interfaces(rails: Iterable[int]) -> str:
    """The network cards of rails, as the peers are told."""
    return ",".join(f"rail{rail}" for rail in rails)


# A run


class Bed:
    """A testbed with a program on it; ends with this process, however that ends."""

    def __init__(self, options: argparse.Namespace, hosts: int, program: Program, folder: Path) -> None:
        self._testbed = testbed_of(options)
        self._name = f"training-{os.getpid()}"
        command = [
            self._testbed, "--hosts", str(hosts), "--rails", str(options.rails), "--rate", options.rate,
            "--limit", RUN_LIMIT, "--control", self._name, "--", *program.command(folder),
        ]
        with (folder / ERRORS).open("w") as errors:
            self.process = subprocess.Popen(
                command, env={**os.environ, **program.environment}, stdin=subprocess.DEVNULL, text=True,
                stdout=subprocess.PIPE, stderr=errors, process_group=0, preexec_fn=end_with_parent,
            )
        self._lines: queue.Queue[Line | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for text in self.process.stdout or ():
            self._lines.put(Line(text.rstrip("\n"), time.monotonic_ns()))
        self._lines.put(None)

    def line(self, seconds: float) -> Line | None:
        """The next line of standard output, or None at its end.

        Raises:
            queue.Empty: there is none for so long.
        """
        return self._lines.get(timeout=seconds)

    def tell(self, order: Order) -> Act:
        """Cuts or heals a cable."""
        request = f"{order.turn} {order.fault}:host={order.host},rail={order.rail}".split()
        done = subprocess.run(
            [self._testbed, "--tell", self._name, *request], capture_output=True, text=True,
            timeout=TELL_SECONDS, check=False,
        )
        if done.returncode != 0:
            sys.exit(f"the testbed does not {' '.join(request)}: {done.stdout}{done.stderr}")
        return Act(order, json.loads(done.stdout)["began_ns"])


def end_with_parent() -> None:
    """Lets the kernel kill this process when its parent is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def testbed_of(options: argparse.Namespace) -> str:
    """The testbed."""
    return os.path.join(os.path.abspath(options.build), "testbed")


def measure(options: argparse.Namespace, hosts: int, program: Program, orders: list[Order]) -> Run:
    """Runs a program and carries the orders out."""
    with scratch() as folder:
        bed = Bed(options, hosts, program, folder)
        try:
            run, lines = follow(bed, program, orders, options)
        finally:
            stop(bed.process)
        run.said = (folder / ERRORS).read_text(errors="replace")
        read_steps(run, folder / RECORD, lines)
    note(f"{hosts} hosts, {program.name}: {run.outcome}, {len(run.steps)} steps, {len(cuts_of(run))} cuts")
    if run.outcome == "aborted":
        note("".join(run.said.splitlines(keepends=True)[-5:]))
    return run


def follow(bed: Bed, program: Program, orders: list[Order], options: argparse.Namespace) -> tuple[Run, list[Line]]:
    """Waits for the end, or until there is no step any more; returns the lines that ended steps."""
    run, lines, pending = Run(), [], list(orders)
    moments = random.Random(options.seed)
    try:
        while (line := bed.line(options.patience if lines else START_SECONDS)) is not None:
            if not program.step.match(line.text):
                continue
            lines.append(line)
            while pending and pending[0].after_steps <= len(lines):
                # Anywhere in a step, not always where it begins.
                time.sleep(moments.random() * (line.at_ns - lines[-2].at_ns) / 1e9)
                run.acts.append(bed.tell(pending.pop(0)))
        run.status = bed.process.wait(options.patience)
        run.outcome = "aborted" if run.status else "finished"
    except (queue.Empty, subprocess.TimeoutExpired):
        run.outcome = "hung"
    run.ended_ns = time.monotonic_ns()
    return run, lines


def read_steps(run: Run, record: Path, lines: list[Line]) -> None:
    """Fills in what the program has written down, or else said."""
    if not record.exists():
        befores = [*lines[:1], *lines]
        run.steps = [
            Step(line.text.split()[-1], before.at_ns, line.at_ns) for before, line in zip(befores, lines)
        ]
        return
    for entry in map(json.loads, record.read_text().splitlines()):
        if "loss" in entry:
            run.steps.append(Step(entry["loss"], entry["began_ns"], entry["ended_ns"]))
        elif "parameters" in entry:
            run.parameters = entry["parameters"]
        else:
            run.notices.append(entry)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is removed even if this process is killed, by one that waits for its end."""
    folder = tempfile.mkdtemp(prefix="r2ccl-training-")
    script = 'trap "" INT TERM HUP; cat >/dev/null; rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }'
    janitor = subprocess.Popen(
        ["sh", "-c", script, "sh", folder], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield Path(folder)
    finally:
        janitor.communicate(timeout=TELL_SECONDS)


def circumstances(options: argparse.Namespace, missing: list[str]) -> str:
    """When, where and of what was measured."""
    version = first_line([options.python, "-c", "import torch; print(torch.__version__)"])
    called = ["PYTHON" if word == options.python else word for word in sys.argv[1:] if word != "--write"]
    lines = [
        f"- {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, commit {commit()}, PyTorch {version}",
        f"- {processor()}, {os.cpu_count()} cores, Linux {platform.release()}; load average at the end "
        f"{os.getloadavg()[0]:.1f}",
        f"- `{' '.join(['tests/measure/training.py', *called])}`",
        f"- one rank on every host, {options.rails} rails of {options.rate} each; "
        f"`ddp_train.py {' '.join(options.model)}`",
        f"- with more than two hosts `{'='.join(ORDER_SETTING)}`",
    ]
    return "\n".join(lines + [f"- not measured: {line}" for line in missing])


# All of it


def trials(options: argparse.Namespace, hosts: int, program: Program) -> Iterator[Result]:
    """A program without and with faults; this library loses every rail, and more than once."""
    calm, rough = [], []
    for _ in range(options.rounds if program.name == OURS else 1):
        calm.append(measure(options, hosts, program, []))
        if program.name == OURS:
            rough.append(measure(options, hosts, program, every_rail_once(options)))
    yield Result(hosts, program.name, "nothing", calm, calm[0])
    if rough:
        yield Result(hosts, program.name, "every rail once, and back", rough, calm[0])
    lost = measure(options, hosts, program, one_cut(options))
    yield Result(hosts, program.name, "rail 0 of host 0", [lost], calm[0])


def prepare(options: argparse.Namespace) -> None:
    """Checks that there can be a testbed, and that PyTorch finds this library; compiles its backend."""
    bed = subprocess.run([testbed_of(options), "--hosts", "2", "--", "true"], capture_output=True, text=True,
                         timeout=PREPARE_SECONDS, check=False)
    if bed.returncode != 0:
        sys.exit(f"there can be no testbed (exit status {bed.returncode}): {bed.stderr}")
    ask = "from r2ccl.torch import build; import r2ccl.torch; build.compiled()"
    backend = subprocess.run([options.python, "-c", ask], capture_output=True, text=True,
                             timeout=PREPARE_SECONDS, check=False)
    if backend.returncode != 0:
        sys.exit(f"{options.python} has no PyTorch with this library:\n{backend.stderr}")


def main() -> None:
    """Measures everything, and prints it or writes it down."""
    options = arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    prepare(options)
    results: list[Result] = []
    missing: list[str] = []
    with scratch() as folder:
        for hosts in options.hosts:
            found, missing = programs(options, hosts, folder)
            results += [result for program in found for result in trials(options, hosts, program)]
    if options.json is not None:
        options.json.write_text(json.dumps([dataclasses.asdict(result) for result in results]))
    text = "\n\n".join([circumstances(options, missing), outcomes(results, options.patience), faults(results)])
    print(text)
    if options.write:
        write_document(text, DOCUMENT)
    sys.exit(0 if all(result.is_sound() for result in results if result.name == OURS) else 1)


if __name__ == "__main__":
    main()
