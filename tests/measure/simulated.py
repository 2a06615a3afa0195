#!/usr/bin/env python3
"""Holds the simulation of clusters beside what was measured on the testbed.

Reads what degraded.py wrote with --json: the rates, the latency and the overhead that the ranks measured when they
met, and the time of every call. `r2ccl-sim collective` runs the same programs with these rates. Prints a Markdown
table: measured time, simulated time, and by how much the simulation is off, medians over the rounds.

    tests/measure/degraded.py --rate 20mbit --rounds 3 --json FILE
    tests/measure/simulated.py FILE
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile

CLUSTER = """\
name = "testbed"
hosts = {hosts}
gpus_per_host = 1

[nic]
per_host = {rails}
gigabytes_per_second = {rate:.9f}
latency_microseconds = {alpha:.3f}
overhead_microseconds = {overhead:.3f}
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", help="what degraded.py --json wrote")
    parser.add_argument("--build", default="target/release", help="folder of the binaries")
    parser.add_argument("-b", dest="least", type=int, default=1 << 20, help="least size, in bytes")
    return parser.parse_args()


def cluster(measured):
    """The testbed, as a file for the simulation."""
    tuning = measured["tuning"]
    rates = [rate for host in tuning["hosts"] for rate in host["rails"]]
    return CLUSTER.format(hosts=len(tuning["hosts"]), rails=measured["rails"], rate=statistics.median(rates) / 1e9,
                          alpha=tuning["alpha"] * 1e6, overhead=tuning["overhead"] * 1e6)


def simulated(build, file, lost, strategy, size):
    """Microseconds."""
    command = [os.path.join(os.path.abspath(build), "r2ccl-sim"), "collective", "--cluster", file, "--algo", strategy,
               "--bytes", str(size), "--json"]
    command += ["--lost", ",".join(lost)] if lost else []
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)[0]["seconds"] * 1e6


def grouped(calls, least):
    """Measured microseconds of all rounds, by what was lost, how it was reduced, and bytes."""
    times = {}
    for call in calls:
        if call["bytes"] >= least:
            key = (tuple(call["lost"]), call["strategy"], call["bytes"])
            times.setdefault(key, []).append(call["microseconds"])
    return times


def main():
    options = arguments()
    with open(options.file, encoding="utf-8") as file:
        measured = json.load(file)
    errors = []
    print("| lost | strategy | MB | measured, ms | simulated, ms | off, % |\n| --- | --- | --- | --- | --- | --- |")
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(cluster(measured))
        file.flush()
        for (lost, strategy, size), times in grouped(measured["calls"], options.least).items():
            real = statistics.median(times)
            time = simulated(options.build, file.name, lost, strategy, size)
            errors.append(100 * (time / real - 1))
            print(f"| {' '.join(lost) or 'nothing'} | {strategy} | {size / (1 << 20):g} | {real / 1e3:.1f} "
                  f"| {time / 1e3:.1f} | {errors[-1]:+.1f} |")
    sizes = sorted(abs(error) for error in errors)
    print(f"\nOff by {statistics.median(sizes):.1f} % in the median of {len(sizes)}, by {sizes[-1]:.1f} % at most.")


if __name__ == "__main__":
    main()
