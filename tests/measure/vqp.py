#!/usr/bin/env python3
"""What queue pairs that survive their NIC cost, and what they carry over time.

    tests/measure/vqp.py cost [--sizes 16,64,4K,64K,1M] [--rounds 5]
    tests/measure/vqp.py cost --rate 1gbit --sizes 4K,16K,64K [--evidence off,resend,log]
    tests/measure/vqp.py batches [--rounds 5]
    tests/measure/vqp.py latency [--sizes 1,2,4,8,16] [--rounds 5]
    tests/measure/vqp.py verbs
    tests/measure/vqp.py failover [--fault FAULT] [--rounds 3] -- FLAGS
    tests/measure/vqp.py recovery [--cuts 50] [--pairs 16] [--sizes 4K,64K] [--signal last]
    tests/measure/vqp.py memory [--pairs 4096]
    tests/measure/vqp.py timeline --svg FILE [--test vqp_write_bw] [--fault FAULT] -- FLAGS

`cost` measures each size with every evidence beside a plain queue pair (`off`), all in turns in every
round, and prints Markdown tables: medians over the rounds, and the share of the plain one of the same round: its
median, the least and the most. With `--rate` two hosts of the testbed (docs/testbed.md) measure it, whose links carry
so much: then the link is the limit, as on hardware, and not the processors.

`batches` posts 64 requests together, 16 compare-and-swaps with three reads behind each, and prints how long a batch
takes.

`latency` is `ib_write_lat` with small messages: median, and mean and standard deviation, of the middle round. `verbs`
tells what single calls cost. `failover` lets a NIC fail in the middle of writes, messages and reads and tells how long
the fallback took, from the moment when the fault is known until requests are posted on the backup; how long nothing
completed; and what was sent again. `recovery` lets several queue pairs write batches of 64 of which only the last write
is signalled, gives their NIC up at random moments, and tells how long it takes from there until all batches on the
way have completed, and how much of them is sent again. `memory` compares processes that have one queue pair with those that have many.

`timeline` runs a bandwidth test once with each evidence while a NIC fails, and draws its throughput over
time, a curve each; needs matplotlib. FLAGS are passed on, such as `-D 6s --interval 50ms`.

Two processes run `--local`, on pretended NICs of this machine. With `--devices` they use other ones, as in the
guest with soft-RoCE (docs/rdma.md):

    tests/guest/guest.py -- tests/measure/vqp.py --devices rxe_h0n0,rxe_h0n1 rxe_h1n0,rxe_h1n1 latency

See docs/virtual-queue-pair.md.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

PLAIN = "off"
EVIDENCES = [PLAIN, "resend", "handshake", "log"]
SIZES = "16,64,512,4K,64K,1M"
DEFAULT_FAULT = "admin:host=1,rail=0,at=2s,heal=2s"
DEFAULT_FLAGS = ["-D", "6s", "--interval", "50ms"]
MIB = 1 << 20
# Column of what counts: the average bandwidth, and the median latency.
BANDWIDTH_COLUMN = 3
LATENCY_COLUMN = 4
MEAN_COLUMN = 5
DEVIATION_COLUMN = 6
ATOMIC_TEST = "vqp_atomic_lat"
PORT = 18515
# A failed run has a reason to end so; the library's error is shown in its place.
ENDED_WITH_AN_ERROR = 3


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("target/release"))
    parser.add_argument("--devices", nargs=2, metavar=("SERVER", "CLIENT"), help="of the two processes")
    parser.set_defaults(rate=None)
    commands = parser.add_subparsers(dest="command", required=True)
    cost = commands.add_parser("cost")
    cost.add_argument("--sizes", default=SIZES)
    cost.add_argument("--rounds", type=int, default=5)
    cost.add_argument("--evidence", default=",".join(EVIDENCES))
    cost.add_argument("--rate", help="what a link of the testbed carries")
    cost.add_argument("--tests", default="vqp_write_bw,vqp_send_bw,vqp_write_lat,vqp_atomic_lat")
    cost.add_argument("--duration", default="500ms", help="of each bandwidth")
    cost.add_argument("--iterations", type=int, default=3000, help="of each latency")
    batches = commands.add_parser("batches")
    batches.add_argument("--rounds", type=int, default=5)
    batches.add_argument("--evidence", default=",".join(EVIDENCES))
    batches.add_argument("--iterations", type=int, default=300, help="batches of each latency")
    latency = commands.add_parser("latency")
    latency.add_argument("--sizes", default="1,2,4,8,16")
    latency.add_argument("--rounds", type=int, default=5)
    latency.add_argument("--iterations", type=int, default=3000)
    latency.add_argument("--evidence", default=f"{PLAIN},handshake")
    verbs = commands.add_parser("verbs")
    verbs.add_argument("--rounds", type=int, default=11)
    failover = commands.add_parser("failover")
    failover.add_argument("--fault", default=DEFAULT_FAULT)
    failover.add_argument("--rounds", type=int, default=3)
    failover.add_argument("--tests", default="vqp_write_bw,vqp_send_bw,vqp_read_bw")
    failover.add_argument("--evidence", default=",".join(EVIDENCES))
    failover.add_argument("flags", nargs="*", default=["-D", "6s"])
    recovery = commands.add_parser("recovery")
    recovery.add_argument("--cuts", type=int, default=50)
    recovery.add_argument("--pairs", type=int, default=16, help="queue pairs that write at the same time")
    recovery.add_argument("--sizes", default="4K,64K")
    recovery.add_argument("--signal", default="last", choices=["last", "all"], help="writes of a batch")
    memory = commands.add_parser("memory")
    memory.add_argument("--pairs", type=int, default=4096)
    memory.add_argument("--depth", type=int, default=64)
    memory.add_argument("--pool", type=int, help="also with backups from a pool with so many spares of each end")
    memory.add_argument("--evidence", default=",".join(EVIDENCES))
    timeline = commands.add_parser("timeline")
    timeline.add_argument("--svg", type=pathlib.Path, required=True)
    timeline.add_argument("--test", default="vqp_write_bw")
    timeline.add_argument("--fault", default=DEFAULT_FAULT)
    timeline.add_argument("--evidence", default=",".join(EVIDENCES))
    timeline.add_argument("flags", nargs="*", default=DEFAULT_FLAGS)
    return parser.parse_args()


def run(options: argparse.Namespace, test: str, flags: Sequence[str], may_fail: bool = False) -> str:
    """Output of a benchmark; ends this program if that fails."""
    program = str(options.build / test)
    if options.devices is None:
        local = [program, "--local", *flags]
        command = local if options.rate is None else on_testbed(options, [program, *flags])
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    else:
        near, far = options.devices
        answering = [program, "-p", str(PORT), "-d", near]
        command = [program, "127.0.0.1", "-p", str(PORT), "-d", far, *flags]
        with subprocess.Popen(answering, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            finished = subprocess.run(command, capture_output=True, text=True, check=False)
            if finished.returncode != 0:
                server.kill()
    if finished.returncode == 0:
        return finished.stdout
    if may_fail and finished.returncode == ENDED_WITH_AN_ERROR:
        print(f"{' '.join(command)}\n  {finished.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return finished.stdout
    sys.exit(f"{' '.join(command)}: status {finished.returncode}\n{finished.stdout}{finished.stderr}")


def on_testbed(options: argparse.Namespace, command: Sequence[str]) -> list[str]:
    """The command on two hosts with two rails each."""
    testbed = [str(options.build / "testbed"), "--hosts", "2", "--rails", "2", "--rate", options.rate]
    return [*testbed, "--", *command]


def column(output: str, index: int) -> float:
    """A number of the only row of a table."""
    rows = [line.split() for line in output.splitlines() if line[:1] == " " and line.split()[0].isdigit()]
    return float(rows[0][index])


def measurements(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Numbers of all rounds, by what was measured and by evidence."""
    found: dict[str, dict[str, list[float]]] = {}
    tests = options.tests.split(",")
    bandwidth = (["-D", options.duration], BANDWIDTH_COLUMN)
    latency = (["-n", str(options.iterations)], LATENCY_COLUMN)
    for _ in range(options.rounds):
        for size in options.sizes.split(","):
            for test in tests:
                if test != ATOMIC_TEST:
                    flags, index = bandwidth if test.endswith("_bw") else latency
                    measure(options, found, (test, [*flags, "-s", size], index), f"{test} {size}")
        if ATOMIC_TEST in tests:
            measure(options, found, (ATOMIC_TEST, *latency), f"{ATOMIC_TEST} 8")
    return found


def measure(
    options: argparse.Namespace,
    found: dict[str, dict[str, list[float]]],
    what: tuple[str, list[str], int],
    name: str,
) -> None:
    """Adds one number of each evidence."""
    test, flags, index = what
    for evidence in options.evidence.split(","):
        output = run(options, test, [*flags, "--evidence", evidence])
        found.setdefault(name, {}).setdefault(evidence, []).append(column(output, index))


def cost(options: argparse.Namespace) -> None:
    """Prints what each evidence costs."""
    found = measurements(options)
    evidences = options.evidence.split(",")
    for test, unit in [("_bw", "MiB/s"), ("_lat", "µs, median")]:
        rows = [(name, numbers) for name, numbers in found.items() if test in name]
        if rows:
            print(f"\n| {unit} | " + " | ".join(evidences) + " |\n|" + "---|" * (len(evidences) + 1))
            for name, numbers in rows:
                print(f"| {name} | " + " | ".join(cells(numbers)) + " |")


def batches(options: argparse.Namespace) -> None:
    """Prints what each evidence costs where requests are posted together."""
    found: dict[str, dict[str, list[float]]] = {}
    name = "16 compare-and-swaps, three reads behind each"
    flags = ["-A", "CMP_AND_SWAP", "--batch", "16", "--reads", "3", "-n", str(options.iterations)]
    for _ in range(options.rounds):
        measure(options, found, ("vqp_atomic_lat", flags, LATENCY_COLUMN), name)
    evidences = options.evidence.split(",")
    print("| µs of a batch, median | " + " | ".join(evidences) + " |\n|" + "---|" * (len(evidences) + 1))
    print(f"| {name} | " + " | ".join(cells(found[name])) + " |")


def cells(numbers: dict[str, list[float]]) -> list[str]:
    """The median of each evidence, and its share of the plain queue pair."""
    written = []
    for evidence, measured in numbers.items():
        shares = [100 * one / plain for one, plain in zip(measured, numbers.get(PLAIN, []))]
        share = ""
        if shares and evidence != PLAIN:
            share = f" ({statistics.median(shares):.1f} %, {min(shares):.1f} to {max(shares):.1f})"
        written.append(f"{statistics.median(measured):.2f}{share}")
    return written


def latency(options: argparse.Namespace) -> None:
    """Prints how long small writes take."""
    evidences = options.evidence.split(",")
    print("| bytes | " + " | ".join(evidences) + " |\n|" + "---|" * (len(evidences) + 1))
    for size in options.sizes.split(","):
        found: dict[str, list[list[float]]] = {evidence: [] for evidence in evidences}
        for _ in range(options.rounds):
            for evidence in evidences:
                flags = ["-s", size, "-n", str(options.iterations), "--evidence", evidence]
                output = run(options, "vqp_write_lat", flags)
                columns = (LATENCY_COLUMN, MEAN_COLUMN, DEVIATION_COLUMN)
                found[evidence].append([column(output, index) for index in columns])
        middle = [sorted(found[evidence])[options.rounds // 2] for evidence in evidences]
        shown = [f"{median:.2f} ({mean:.2f} ± {deviation:.2f})" for median, mean, deviation in middle]
        print(f"| {size} | " + " | ".join(shown) + " |")


def verbs(options: argparse.Namespace) -> None:
    """Prints what single calls cost."""
    command = [str(options.build / "vqp_verbs"), "--rounds", str(options.rounds)]
    if options.devices is not None:
        command += ["--peer-device", options.devices[0], "-d", options.devices[1]]
    subprocess.run(command, check=True)


def failover(options: argparse.Namespace) -> None:
    """Prints what a fault in the middle costs."""
    print(f"{options.fault}; medians of {options.rounds}, of the fallback mean and standard deviation\n")
    print("| | evidence | fallback, ms | longest gap, ms | sent again, KiB | spared | end |\n" + "|---" * 7 + "|")
    for test in options.tests.split(","):
        for evidence in options.evidence.split(","):
            outputs, fallbacks = [], []
            for _ in range(options.rounds):
                output, seconds = interrupted(options, test, evidence)
                outputs.append(output)
                fallbacks += seconds
            gaps, bytes_again, spared = (
                statistics.median(number(output, before, after) for output in outputs)
                for before, after in [("completion: ", " ms"), ("requests of ", " bytes"), ("spared ", ",")]
            )
            goes_on = all(" failed on rail" not in output for output in outputs)
            end = "goes on" if goes_on else "an error"
            shown = f"{gaps:.1f} | {bytes_again / 1024:.0f} | {spared:.0f}" if goes_on else "– | – | –"
            fallback = "–"
            if fallbacks:
                mean, deviation = statistics.mean(fallbacks), statistics.pstdev(fallbacks)
                fallback = f"{1e3 * mean:.2f} ± {1e3 * deviation:.2f}"
            print(f"| {test} | {evidence} | {fallback} | {shown} | {end} |")


def interrupted(options: argparse.Namespace, test: str, evidence: str) -> tuple[str, list[float]]:
    """Output of a test with a fault in it, and the seconds from when it was known until requests flowed."""
    with tempfile.NamedTemporaryFile() as file:
        flags = [*options.flags, "--evidence", evidence, "--fault", options.fault, "--timeline", file.name]
        output = run(options, test, flags, may_fail=True)
        records = [json.loads(line) for line in file.read().decode().splitlines()]
    events = [record for record in records if record["record"] == "event"]
    kinds = ("interrupted", "resumed")
    fallbacks = [
        after["at_s"] - before["at_s"]
        for before, after in zip(events, events[1:])
        if (before["kind"], after["kind"]) == kinds
    ]
    return output, fallbacks


def number(output: str, before: str, after: str) -> float:
    """The number between two texts."""
    return float(output.split(before)[1].split(after)[0])


def recovery(options: argparse.Namespace) -> None:
    """Prints what cuts in the middle of batches cost."""
    for size in options.sizes.split(","):
        command = [str(options.build / "vqp_recovery"), "--cuts", str(options.cuts), "--size", str(count(size))]
        command += ["--pairs", str(options.pairs), "--signal", options.signal]
        if options.devices is not None:
            command += ["--peer-device", options.devices[0], "-d", options.devices[1]]
        subprocess.run(command, check=True)


def count(size: str) -> int:
    """How many bytes this is, such as 64K."""
    units = {"K": 1 << 10, "M": MIB}
    return int(size[:-1]) * units[size[-1]] if size[-1] in units else int(size)


def memory(options: argparse.Namespace) -> None:
    """Prints how much larger a process with many queue pairs is."""
    print(f"| | backups | MiB with 1 | MiB with {options.pairs} | KiB for each |\n|---|---|---|---|---|")
    pools: list[tuple[str, list[str]]] = [("own", [])]
    if options.pool is not None:
        pools.append((f"a pool of {options.pool}", ["--pool", str(options.pool)]))
    for evidence in options.evidence.split(","):
        for backups, pool in pools if evidence != PLAIN else [("none", [])]:
            flags = ["-s", "64", "-n", "1", "-t", str(options.depth), "--limit", "600s", "--evidence", evidence, *pool]
            one, many = (
                number(run(options, "vqp_write_bw", [*flags, "-q", str(pairs)]), "at most: ", " MiB")
                for pairs in (1, options.pairs)
            )
            each = (many - one) * 1024 / (options.pairs - 1)
            print(f"| {evidence} | {backups} | {one:.1f} | {many:.1f} | {each:.1f} |", flush=True)


def timeline(options: argparse.Namespace) -> None:
    """Runs each evidence and draws the curves."""
    curves = {}
    with tempfile.TemporaryDirectory() as folder:
        for evidence in options.evidence.split(","):
            file = pathlib.Path(folder) / evidence
            flags = [*options.flags, "--evidence", evidence, "--fault", options.fault, "--timeline", str(file)]
            run(options, options.test, flags, may_fail=True)
            curves[evidence] = [json.loads(line) for line in file.read_text().splitlines()]
    draw(options, curves)


def draw(options: argparse.Namespace, curves: dict[str, list[dict]]) -> None:
    """Writes the picture: a field for each curve, all with the same axes."""
    import matplotlib

    matplotlib.use("svg")
    # The same numbers give the same bytes.
    matplotlib.rcParams["svg.hashsalt"] = "r2ccl"
    from matplotlib import pyplot

    figure, fields = pyplot.subplots(len(curves), 1, sharex=True, sharey=True, squeeze=False,
                                     figsize=(8, 1.8 * len(curves)), layout="constrained")
    for (evidence, records), field in zip(curves.items(), fields[:, 0]):
        intervals = [record for record in records if record["record"] == "interval"]
        times = [record["end_s"] for record in intervals]
        rates = [record["bytes"] / (record["end_s"] - record["start_s"]) / MIB for record in intervals]
        field.step(times, rates, where="pre")
        for record in records:
            if record["record"] == "event":
                field.axvline(record["at_s"], color="0.6", linestyle=":")
                field.annotate(f"{record['kind']}, rail {record['rail']}", (record["at_s"], 0), rotation=90,
                               fontsize="x-small", color="0.4", ha="right", va="bottom")
        field.set_title(f"{options.test}, evidence {evidence}", fontsize="small", loc="left")
        field.set_ylabel("MiB/s")
    fields[-1, 0].set_xlabel(f"seconds; {options.fault}")
    figure.savefig(options.svg, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    chosen = arguments()
    {
        "cost": cost, "batches": batches, "latency": latency, "verbs": verbs, "failover": failover,
        "recovery": recovery, "memory": memory, "timeline": timeline,
    }[chosen.command](chosen)  # fmt: skip
