#!/usr/bin/env python3
"""How long a collective stands still when a rail dies: from the cut to the first good byte elsewhere.

Cuts rails at random moments of an endless all_reduce on the testbed (see docs/testbed.md), joins the
testbed's record of the cuts with the ranks' record of what they noticed, and prints the parts of the
blackout, and when all ranks had agreed on plans without the rail. The records use CLOCK_MONOTONIC of this
machine; the log, which tells of the plans, is converted to it.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time

# As the library logs it: when a rank has the plans of an epoch.
PLANS = re.compile(r"(\S+)Z +INFO \S+: plans change rank=(\d+) epoch=(\d+)")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", default="target/release", help="folder of the binaries")
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--fault", default="carrier", help="carrier, admin or silent")
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--rails", type=int, default=4)
    parser.add_argument("--rate", help="of every rail, as 200mbit, or none; that of the testbed, 1gbit, if left out")
    parser.add_argument("--size", default="64K")
    parser.add_argument("--every", type=float, default=0.5, help="mean seconds between cuts")
    parser.add_argument("--heal", type=float, default=0.25, help="mean seconds until a cable heals")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", default="all_reduce_perf")
    return parser.parse_args()


def run(options, folder):
    """Runs the benchmark until enough cuts were made; returns all records."""
    build = os.path.abspath(options.build)
    cuts, ranks = os.path.join(folder, "cuts"), os.path.join(folder, "ranks")
    seconds = options.cuts * options.every * 1.3 + 3
    chaos = f"{options.seed}:every={options.every * 1000:.0f}ms,heal={options.heal * 1000:.0f}ms"
    chaos += f",most=1,hosts=1,faults={options.fault}"
    # A round is about a second; the number of rounds is chosen from a first, short run.
    iterations = max(1, int(seconds / probe(options, build)))
    command = [
        *testbed(options, build),
        "--limit", f"{seconds * 4 + 60:.0f}s", "--json", cuts, "--from", "in-place", "--chaos", chaos,
        "--", os.path.join(build, options.program), "-b", options.size, "-e", options.size,
        "-n", str(iterations), "-w", "5", "-c", "1", "--timeline", ranks,
    ]
    # Rails that flap on purpose are not kept out.
    environment = dict(os.environ, R2CCL_RAIL_HOLD="0", R2CCL_LOG="error,ccl::health=info")
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nexit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    rows = [line.split() for line in done.stdout.splitlines() if line[:1] == " " and line.strip()[0].isdigit()]
    wrong = sum(int(row[column]) for row in rows for column in (8, 12) if row[column] != "N/A")
    return lines(cuts), lines(ranks), epochs(done.stdout + done.stderr, options.hosts), wrong, " ".join(command)


def testbed(options, build):
    """How hosts are made."""
    rate = ["--rate", options.rate] if options.rate else []
    return [os.path.join(build, "testbed"), "--hosts", str(options.hosts), "--rails", str(options.rails), *rate]


def probe(options, build):
    """Seconds of one out-of-place and one in-place call."""
    command = [
        *testbed(options, build),
        "--", os.path.join(build, options.program), "-b", options.size, "-e", options.size,
        "-n", "200", "-w", "20", "-c", "0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines() if line[:1] == " " and line.strip()[0].isdigit()]
    return (float(rows[-1][5]) + float(rows[-1][9])) / 1e6


def lines(name):
    with open(name, encoding="utf-8") as file:
        return sorted((json.loads(line) for line in file), key=lambda item: item.get("at_ns", item.get("began_ns", 0)))


def epochs(log, ranks):
    """When the last rank had the plans of each epoch, in nanoseconds of CLOCK_MONOTONIC, in order."""
    offset = time.time_ns() - time.monotonic_ns()
    zone = datetime.timezone.utc
    found = {}
    for moment, _, epoch in PLANS.findall(log):
        at = datetime.datetime.fromisoformat(moment).replace(tzinfo=zone).timestamp()
        found.setdefault(int(epoch), []).append(int(at * 1e9) - offset)
    return sorted(max(moments) for moments in found.values() if len(moments) == ranks)


def blackouts(cuts, events, plans):
    """For every cut that traffic noticed: milliseconds to the first rank that gave the rail up, to the
    last, to the last one whose traffic went on, and to plans without it, or None."""
    cuts = [item for item in cuts if item.get("turn") == "cut"]
    for cut, after in zip(cuts, cuts[1:] + [None]):
        start = cut["began_ns"]
        end = after["began_ns"] if after else float("inf")
        host, rail = cut["host"], cut["rail"]

        def concerns(event):
            mine = event["rank"] == host and event["rail"] == rail
            return mine or event["path"].endswith(f" to rank {host} rail {rail}")

        window = [event for event in events if start <= event["at_ns"] < end and concerns(event)]
        given_up = [event for event in window if event["event"] == "given-up"]
        if not given_up:
            continue
        links = {(event["rank"], event["path"]): event["at_ns"] for event in given_up}
        resumed = []
        for (rank, path), at in links.items():
            later = [e["at_ns"] for e in window
                     if e["event"] == "resumed" and (e["rank"], e["path"]) == (rank, path) and e["at_ns"] >= at]
            resumed += later[:1]
        if resumed:
            first, last = min(links.values()), max(links.values())
            planned = next((at for at in plans if first <= at < end), None)
            yield tuple(at and (at - start) / 1e6 for at in (first, last, max(resumed), planned))


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        cuts, events, plans, wrong, command = run(options, folder)
    found = list(blackouts(cuts, events, plans))
    made = sum(1 for item in cuts if item.get("turn") == "cut")
    print(f"{command}")
    print(f"{options.fault}: {made} cuts, {len(found)} noticed by traffic, {wrong} wrong results; load {os.getloadavg()[0]:.1f}")
    if not found:
        sys.exit("no cut was noticed")
    print("| milliseconds from the cut | median | 99 % | most |")
    print("| --- | --- | --- | --- |")
    names = ["first end has given the rail up", "last end has", "first good byte elsewhere, last link",
             "all ranks plan without it"]
    for column, name in enumerate(names):
        values = [item[column] for item in found if item[column] is not None]
        if not values:
            sys.exit("no plans changed")
        print(f"| {name} | {quantile(values, 0.5):.1f} | {quantile(values, 0.99):.1f} | {max(values):.1f} |")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
