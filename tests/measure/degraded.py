#!/usr/bin/env python3
"""What an AllReduce keeps of its bandwidth when rails are lost, by strategy.

On the testbed (see docs/testbed.md; needs root), with rails slow enough that the processors do not
matter. In every round, for every size, the healthy cluster and every case of lost rails take turns, each
with every strategy. Prints Markdown tables: the share of the healthy bandwidth of the same round,
medians over the rounds, beside the share that no AllReduce can exceed; and what the planner predicted.

    tests/measure/degraded.py --hosts 4 --rails 8 --rate 50mbit --sizes 1M,16M --rounds 3 [--svg FILE]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

CASES = {
    "1 rail of 1 host": ["0:0"],
    "2 rails of 1 host": ["0:0", "0:1"],
    "1 rail of 2 hosts each, the same": ["0:0", "1:0"],
    "1 rail of 2 hosts each, different": ["0:0", "1:1"],
}
PLANNER = "planner"
STRATEGIES = ["r2ccl_hot_repair", "balance", "r2ccl_two_stage", "r2ccl_recursive", "two_shot", "nested_rings", "hub_shares", PLANNER]
# Calls before the timed ones: all ranks agree on plans for the rails that are left some calls after the loss.
WARM_UP = 7
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", default="target/release", help="folder of the binaries")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rails", type=int, default=8)
    parser.add_argument("--rate", default="50mbit", help="of every rail, in mbit or gbit")
    parser.add_argument("--sizes", default="256K,1M,4M,16M,64M")
    parser.add_argument("--cases", default=",".join(str(n) for n in range(len(CASES))), help="by number")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of timed calls for each cell, about")
    parser.add_argument("--svg", help="write the curves to this file; needs matplotlib")
    return parser.parse_args()


def bytes_of(size):
    """Bytes of a size such as 64K."""
    unit = UNITS.get(size[-1].upper())
    return int(size[:-1]) * unit if unit else int(size)


def bytes_per_second(rate):
    """Bytes per second of a rate such as 50mbit."""
    factor = {"mbit": 1e6, "gbit": 1e9}[rate[-4:]]
    return float(rate[:-4]) * factor / 8


def bound(options, lost):
    """The least time of an AllReduce, in units of size over rate of a rail."""
    left = [options.rails - sum(1 for item in lost if item.split(":")[0] == str(host)) for host in range(options.hosts)]
    return max(1 / min(left), 2 * (options.hosts - 1) / sum(left))


def measure(options, tuning, lost, strategy, size):
    """Microseconds of one call: the mean of out of place and in place."""
    build = os.path.abspath(options.build)
    expected = bound(options, lost) * bytes_of(size) / bytes_per_second(options.rate) * 1.5
    calls = max(2, min(200, int(options.seconds / expected / 2)))
    command = [
        os.path.join(build, "testbed"), "--hosts", str(options.hosts), "--rails", str(options.rails),
        "--rate", options.rate, "--limit", "300s", "--from", "Using devices",
        *(word for item in lost for word in ("--fault", "admin:host=%s,rail=%s,at=0ms" % tuple(item.split(":")))),
        "--", os.path.join(build, "all_reduce_perf"), "-b", size, "-e", size,
        "-n", str(calls), "-w", str(WARM_UP + calls // 2), "-c", "1",
        *(() if strategy == PLANNER else ("--algo", strategy)),
    ]
    environment = dict(os.environ, R2CCL_TUNING=tuning, R2CCL_LOG="error")
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    rows = [line.split() for line in done.stdout.splitlines() if line[:1] == " " and line.strip()[:1].isdigit()]
    if done.returncode != 0 or not rows:
        sys.exit(f"{' '.join(command)}\nexit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    row = rows[-1]
    if row[8] != "0" or row[12] != "0":
        sys.exit(f"{' '.join(command)}\nwrong results\n{done.stdout}")
    return (float(row[5]) + float(row[9])) / 2


def predicted(options, tuning, lost, strategy, size):
    """Microseconds, as the planner predicts with the measurements of the testbed, and the name of its choice."""
    command = [os.path.join(os.path.abspath(options.build), "r2ccl"), "explain", "allreduce", "--tuning", tuning, "--bytes", size]
    command += ["--lost", ",".join(lost)] if lost else []
    command += [] if strategy == PLANNER else ["--algo", strategy]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    chosen = next(line for line in done.stdout.splitlines() if line.startswith("* ")).split()
    return float(chosen[2]), chosen[1]


def median(values):
    return statistics.median(values)


def main():
    options = arguments()
    sizes, strategies = options.sizes.split(","), options.strategies.split(",")
    names = list(CASES)
    cases = {names[int(n)]: CASES[names[int(n)]] for n in options.cases.split(",")}
    kept, errors, choices = {}, [], {}
    healthy = {}
    with tempfile.TemporaryDirectory() as folder:
        tuning = os.path.join(folder, "tuning.json")
        measure(options, tuning, [], PLANNER, sizes[0])
        with open(tuning, encoding="utf-8") as file:
            hosts = json.load(file)["hosts"]
        rates = [rate for host in hosts for rate in host["rails"]]
        print(f"rails measured at {min(rates) / 1e6:.2f} to {max(rates) / 1e6:.2f} MB/s", file=sys.stderr)
        for turn in range(options.rounds):
            for size in sizes:
                well = measure(options, tuning, [], PLANNER, size)
                healthy.setdefault(size, []).append(well)
                for case, lost in cases.items():
                    for strategy in strategies:
                        time = measure(options, tuning, lost, strategy, size)
                        kept.setdefault((case, size, strategy), []).append(well / time)
                        expected, chosen = predicted(options, tuning, lost, strategy, size)
                        if strategy == PLANNER:
                            choices[case, size] = chosen
                        if bytes_of(size) >= 1 << 20:
                            errors.append(abs(expected / time - 1))
                        print(f"# round {turn + 1} {size} {case} {strategy}: {time:.0f} us, {100 * well / time:.1f} %, "
                              f"predicted {expected:.0f} us", file=sys.stderr)
    report(options, cases, sizes, strategies, kept, healthy, choices)
    print(f"\nPredicted against measured times at 1 MB and more: median error {100 * median(errors or [0]):.0f} %.")
    if options.svg:
        plot(options, cases, sizes, strategies, kept)


def report(options, cases, sizes, strategies, kept, healthy, choices):
    """Prints a table for every case."""
    command = " ".join(["tests/measure/degraded.py", *sys.argv[1:]])
    print(f"`{command}`; load {os.getloadavg()[0]:.1f}; share of the healthy bandwidth of the same round, in percent; "
          f"median of {options.rounds} rounds.")
    for case, lost in cases.items():
        limit = 100 * bound(options, []) / bound(options, lost)
        print(f"\n{options.hosts} hosts × {options.rails} rails, {case} lost; bound {limit:.1f}\n")
        print("| size | healthy | " + " | ".join(strategies) + " | planner's choice |")
        print("| --- " * (len(strategies) + 3) + "|")
        for size in sizes:
            cells = [f"{100 * median(kept[case, size, strategy]):.1f}" for strategy in strategies]
            well = median(healthy[size]) / 1e3
            print(f"| {size} | {well:.1f} ms | " + " | ".join(cells) + f" | {choices.get((case, size), '-')} |")


def plot(options, cases, sizes, strategies, kept):
    """Writes a curve for every strategy, a picture for every case."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(cases), figsize=(5 * len(cases), 4), sharey=True, squeeze=False)
    for axis, (case, lost) in zip(axes[0], cases.items()):
        for strategy in strategies:
            axis.plot(sizes, [100 * median(kept[case, size, strategy]) for size in sizes], marker="o", label=strategy)
        axis.axhline(100 * bound(options, []) / bound(options, lost), color="black", linewidth=1, label="bound")
        axis.set_title(f"{case} lost")
        axis.set_xlabel("bytes")
    axes[0][0].set_ylabel("% of the healthy bandwidth")
    axes[0][-1].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(options.svg, metadata={"Date": None})


if __name__ == "__main__":
    main()
