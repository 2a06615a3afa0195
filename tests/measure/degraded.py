#!/usr/bin/env python3
"""What an AllReduce keeps of its bandwidth when rails are lost, by strategy.

On the testbed (see docs/testbed.md; needs root), with rails slow enough that the processors do not
matter. In every round the healthy cluster and every case of lost rails take turns, each with every
strategy. A run from which the hypervisor took too much processor time is repeated. Prints Markdown tables: the
share of the healthy bandwidth of the same round, medians over the rounds, beside the share that no AllReduce can
exceed; what the planner predicted; and how much slower its choice was than the best strategy.

    tests/measure/degraded.py --hosts 4 --rails 8 --rate 20mbit -b 256K -e 64M -f 4 --rounds 3 [--svg FILE]

With --json every measured time is written to a file, which tests/measure/simulated.py holds beside the simulation.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile

PLANNER = "planner"
STRATEGIES = ["r2ccl_hot_repair", "balance", "r2ccl_two_stage", "r2ccl_recursive", "two_shot", "nested_rings",
              "hub_shares", PLANNER]
# All ranks agree on plans for the rails that are left some calls after the loss: so many smaller sizes are
# measured for nothing before.
FORERUNNERS = 2
# Predictions are judged from this size on.
JUDGED_BYTES = 1 << 20
# A run is repeated if more than this part of the processors was taken away, but not more often than this.
MOST_STOLEN = 0.08
ATTEMPTS = 3
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cases(hosts, rails):
    """Which rails are lost, as HOST:RAIL, by what people call it."""
    return {
        "1 rail of 1 host": ["0:0"],
        "2 rails of 1 host": ["0:0", "0:1"],
        "1 rail of 2 hosts each, the same": ["0:0", "1:0"],
        "1 rail of 2 hosts each, different": ["0:0", "1:1"],
        "a different rail of every host": [f"{host}:{host % rails}" for host in range(hosts)],
    }


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", default="target/release", help="folder of the binaries")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rails", type=int, default=8)
    parser.add_argument("--rate", default="20mbit", help="of every rail, in mbit or gbit")
    parser.add_argument("-b", dest="least", type=bytes_of, default="256K", help="least size")
    parser.add_argument("-e", dest="most", type=bytes_of, default="64M", help="greatest size")
    parser.add_argument("-f", dest="factor", type=int, default=4, help="between sizes")
    parser.add_argument("-n", dest="calls", type=int, default=3, help="timed calls of every size, twice")
    parser.add_argument("--cases", default="0,1,2,3,4", help="some of them, by number")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--svg", help="write the curves to this file; needs matplotlib")
    parser.add_argument("--json", help="write all times to this file")
    return parser.parse_args()


def bytes_of(size):
    """Bytes of a size such as 64K."""
    unit = UNITS.get(size[-1].upper())
    return int(size[:-1]) * unit if unit else int(size)


def name_of(size):
    """A size as people write it."""
    letter, unit = next(((letter, unit) for letter, unit in reversed(UNITS.items()) if size % unit == 0), ("", 1))
    return f"{size // unit}{letter}"


def sizes_of(options):
    """All sizes that count."""
    sizes = [options.least]
    while sizes[-1] * options.factor <= options.most:
        sizes.append(sizes[-1] * options.factor)
    return sizes


def bound(options, lost):
    """The least time of an AllReduce, in units of size over rate of a rail. A rail that no other host has is useless."""
    hosts = range(options.hosts)
    having = [[host for host in hosts if f"{host}:{rail}" not in lost] for rail in range(options.rails)]
    left = [sum(1 for some in having if host in some and len(some) > 1) for host in hosts]
    return max(1 / min(left), 2 * (options.hosts - 1) / sum(left))


def stolen():
    """Time that the hypervisor took from the processors, and all time, in any unit."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return fields[7], sum(fields)


def measure_rates(options, tuning):
    """Lets the ranks measure their rails and write what they find."""

    def afresh():
        with contextlib.suppress(FileNotFoundError):
            os.remove(tuning)
        run(argparse.Namespace(**{**vars(options), "most": options.least}), tuning, [], PLANNER)

    undisturbed("the rates", afresh)


def measure(options, tuning, lost, strategy):
    """Microseconds of one call, by size: the mean of out of place and in place."""
    return undisturbed(strategy, lambda: run(options, tuning, lost, strategy))


def undisturbed(name, action):
    """What an action returns that was hardly disturbed, or at last one that was."""
    for attempt in range(1, ATTEMPTS + 1):
        before = stolen()
        result = action()
        taken, passed = (late - early for early, late in zip(before, stolen()))
        if taken <= MOST_STOLEN * passed:
            break
        print(f"# {name}: {100 * taken / passed:.0f} % of the processors were taken away"
              f"{'' if attempt == ATTEMPTS else ', again'}", file=sys.stderr)
    return result


def run(options, tuning, lost, strategy):
    """The same, whatever else happens on the machine."""
    build = os.path.abspath(options.build)
    first = max(1, options.least // options.factor**FORERUNNERS)
    command = [
        os.path.join(build, "testbed"), "--hosts", str(options.hosts), "--rails", str(options.rails),
        "--rate", options.rate, "--limit", "900s", "--from", "Using devices",
        *(word for item in lost for word in ("--fault", "admin:host=%s,rail=%s,at=0ms" % tuple(item.split(":")))),
        "--", os.path.join(build, "all_reduce_perf"), "-b", str(first), "-e", str(options.most),
        "-f", str(options.factor), "-n", str(options.calls), "-w", "1", "-c", "1",
        *(() if strategy == PLANNER else ("--algo", strategy)),
    ]
    environment = dict(os.environ, R2CCL_TUNING=tuning, R2CCL_LOG="error")
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    rows = [line.split() for line in done.stdout.splitlines() if line[:1] == " " and line.strip()[:1].isdigit()]
    if done.returncode != 0 or len(rows) != FORERUNNERS + len(sizes_of(options)):
        sys.exit(f"{' '.join(command)}\nexit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    if any(row[8] != "0" or row[12] != "0" for row in rows):
        sys.exit(f"{' '.join(command)}\nwrong results\n{done.stdout}")
    return {int(row[0]): (float(row[5]) + float(row[9])) / 2 for row in rows[FORERUNNERS:]}


def predicted(options, tuning, lost, strategy, size):
    """Microseconds, as the planner predicts with the measurements of the testbed, and the name of its choice."""
    command = [os.path.join(os.path.abspath(options.build), "r2ccl"), "explain", "allreduce",
               "--tuning", tuning, "--bytes", str(size)]
    command += ["--lost", ",".join(lost)] if lost else []
    command += [] if strategy == PLANNER else ["--algo", strategy]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    chosen = next(line for line in done.stdout.splitlines() if line.startswith("* ")).split()
    return float(chosen[2]), chosen[1]


class Record:
    """What was measured and predicted so far."""

    def __init__(self):
        self.healthy = {}  # by size, microseconds of every round
        self.kept = {}  # by (case, size, strategy), shares of the healthy bandwidth
        self.predicted = {}  # by (case, size, strategy), errors of predictions
        self.choices = {}  # by (case, size), what the planner took
        self.calls = []  # everything, for --json

    def call(self, turn, lost, size, strategy, microseconds, chosen):
        """A time that was measured."""
        names = ["round", "lost", "bytes", "strategy", "microseconds", "chosen"]
        self.calls.append(dict(zip(names, [turn, lost, size, strategy, microseconds, chosen])))

    def share(self, case, size, strategy):
        """Of the healthy bandwidth, the median of the rounds."""
        return statistics.median(self.kept[case, size, strategy])

    def errors(self):
        """Relative errors of all predictions that count."""
        return [error for (_, size, _), errors in self.predicted.items() if size >= JUDGED_BYTES for error in errors]


def run_round(options, tuning, record, turn):
    """The healthy cluster, and every case with every strategy."""
    well = measure(options, tuning, [], PLANNER)
    for size, time in well.items():
        record.healthy.setdefault(size, []).append(time)
        expected, chosen = predicted(options, tuning, [], PLANNER, size)
        record.predicted.setdefault(("healthy", size, PLANNER), []).append(abs(expected / time - 1))
        record.call(turn, [], size, PLANNER, time, chosen)
        print(f"# round {turn} healthy {name_of(size)}: {time:.0f} us, predicted {expected:.0f} us ({chosen})",
              file=sys.stderr)
    for case, lost in chosen_cases(options).items():
        for strategy in options.strategies.split(","):
            for size, time in measure(options, tuning, lost, strategy).items():
                key = (case, size, strategy)
                record.kept.setdefault(key, []).append(well[size] / time)
                expected, chosen = predicted(options, tuning, lost, strategy, size)
                record.predicted.setdefault(key, []).append(abs(expected / time - 1))
                record.call(turn, lost, size, strategy, time, chosen)
                if strategy == PLANNER:
                    record.choices[case, size] = chosen
                print(f"# round {turn} {case} {name_of(size)} {strategy}: {time:.0f} us, "
                      f"{100 * well[size] / time:.1f} %, predicted {expected:.0f} us ({chosen})", file=sys.stderr)


def chosen_cases(options):
    """The cases that were asked for."""
    every = list(cases(options.hosts, options.rails).items())
    return dict(every[int(number)] for number in options.cases.split(","))


def main():
    options = arguments()
    record = Record()
    with tempfile.TemporaryDirectory() as folder:
        tuning = os.path.join(folder, "tuning.json")
        measure_rates(options, tuning)
        with open(tuning, encoding="utf-8") as file:
            measured = json.load(file)
        rates = [rate for host in measured["hosts"] for rate in host["rails"]]
        print(f"# rails measured at {min(rates) / 1e6:.2f} to {max(rates) / 1e6:.2f} MB/s", file=sys.stderr)
        for turn in range(options.rounds):
            run_round(options, tuning, record, turn + 1)
    report(options, record)
    if options.svg:
        plot(options, record)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"tuning": measured, "rails": options.rails, "calls": record.calls}, file, indent=1)


def report(options, record):
    """Prints a table for every case, and how good predictions and choices were."""
    command = " ".join(["tests/measure/degraded.py", *sys.argv[1:]])
    strategies = options.strategies.split(",")
    print(f"`{command}`; load {os.getloadavg()[0]:.1f}; share of the healthy bandwidth of the same round, in percent; "
          f"median of {options.rounds} rounds.")
    for case, lost in chosen_cases(options).items():
        limit = 100 * bound(options, []) / bound(options, lost)
        print(f"\n{options.hosts} hosts × {options.rails} rails, {case} lost; bound {limit:.1f}\n")
        print("| size | healthy | " + " | ".join(strategies) + " | planner's choice |")
        print("| --- " * (len(strategies) + 3) + "|")
        for size in sizes_of(options):
            cells = [f"{100 * record.share(case, size, strategy):.1f}" for strategy in strategies]
            well = statistics.median(record.healthy[size]) / 1e3
            choice = record.choices.get((case, size), "-")
            print(f"| {name_of(size)} | {well:.1f} ms | " + " | ".join(cells) + f" | {choice} |")
    error = 100 * statistics.median(record.errors() or [0])
    print(f"\nPredicted against measured times from {name_of(JUDGED_BYTES)} on: median error {error:.0f} %.")
    if PLANNER in strategies:
        print(f"The planner's choice, slower than the best strategy: {choices(options, record)}.")


def choices(options, record):
    """By size, by how many percent the planner's choice was slower than the best strategy, in each case."""

    def loss(case, size):
        best = max(record.share(case, size, strategy) for strategy in options.strategies.split(","))
        return 100 * (best / record.share(case, size, PLANNER) - 1)

    words = (", ".join(f"{loss(case, size):.0f}" for case in chosen_cases(options)) for size in sizes_of(options))
    return "; ".join(f"{name_of(size)} {word} %" for size, word in zip(sizes_of(options), words))


def plot(options, record):
    """Writes a curve for every strategy, a picture for every case."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "r2ccl"
    some, sizes = chosen_cases(options), sizes_of(options)
    figure, axes = pyplot.subplots(1, len(some), figsize=(4 * len(some), 4), sharey=True, squeeze=False)
    for axis, (case, lost) in zip(axes[0], some.items()):
        for strategy in options.strategies.split(","):
            shares = [100 * record.share(case, size, strategy) for size in sizes]
            axis.plot([name_of(size) for size in sizes], shares, marker="o", label=strategy)
        axis.axhline(100 * bound(options, []) / bound(options, lost), color="black", linewidth=1, label="bound")
        axis.set_title(f"{case} lost", fontsize="small")
        axis.set_xlabel("bytes")
    axes[0][0].set_ylabel("% of the healthy bandwidth")
    axes[0][-1].legend(fontsize="x-small")
    figure.tight_layout()
    figure.savefig(options.svg, metadata={"Date": None})


if __name__ == "__main__":
    main()
