#!/usr/bin/env python3
"""Collectives between two hosts beside what their network, and other libraries, can do.

    tests/measure/between_hosts.py rails --rails 8 --rate 300mbit     beside iperf3, on the testbed (needs root)
    tests/measure/between_hosts.py loopback                           beside plain sockets, without any limit
    tests/measure/between_hosts.py peers [--torch PYTHON]             8 bytes and more, beside MPIs and Gloo over TCP

Intel MPI is looked for where `tests/peers/compare.py --install` puts it (`--peers`, its `--build`). The candidates take turns, round by round; what is printed are medians over the rounds, and the least and most. Bandwidths are those of a
direction. Between two hosts the bus bandwidth of nccl-tests is what each host sends, and receives, per second.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PEERS = Path(__file__).resolve().parent.parent / "peers"
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "alltoall"]
OPERATIONS = [*COLLECTIVES, "broadcast"]
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Of iperf3, in seconds: what is measured, and what is left out before.
IPERF_SECONDS = 3
IPERF_OMITTED = 1
PORT = 5201
LIMIT = 120  # seconds for any program
UNTIMED = 5  # calls, of everybody; each program makes one more
SMALL_CALLS = 5000
NOTHING_US = 0.5  # less than any call of the kernel that sends takes
CALLS_BYTES = 256 << 20  # of larger messages, all calls together


def main():
    options = arguments()
    {"rails": rails, "loopback": loopback, "peers": peers, "iperf": iperf}[options.command](options)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("rails", "loopback", "peers"):
        command = commands.add_parser(name)
        command.add_argument("--build", default="target/release", help="folder of the binaries")
        command.add_argument("--rounds", type=int, default=5)
    for name in ("rails", "loopback"):
        commands.choices[name].add_argument("--sizes", type=sizes, default="32M,64M")
    commands.choices["rails"].add_argument("--rails", type=int, default=8)
    commands.choices["rails"].add_argument("--rate", default="300mbit", help="of every rail, in mbit or gbit")
    commands.choices["loopback"].add_argument("--pairs", type=int, default=1, help="ranks of each host")
    command = commands.choices["peers"]
    command.add_argument("--sizes", type=sizes, default="8")
    command.add_argument("--operations", type=operations, default="all_reduce", metavar="OPERATION,...", help=", ".join(OPERATIONS))
    command.add_argument("--torch", metavar="PYTHON", help="a Python with PyTorch, for Gloo")
    command.add_argument("--peers", default="target/peers", type=Path, metavar="FOLDER", help="where Intel MPI is")
    # What runs on the testbed, on both hosts.
    commands.add_parser("iperf").add_argument("rails", type=int)
    return parser.parse_args()


def sizes(text):
    """Bytes of sizes such as `8,32M`."""
    return [int(size.rstrip("KMGkmg")) * UNITS.get(size[-1:].upper(), 1) for size in text.split(",")]


def operations(text):
    """Names of collectives that all candidates know."""
    names = text.split(",")
    unknown = sorted(set(names) - set(OPERATIONS))
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(OPERATIONS)}")
    return names


# The rails of the testbed


def rails(options):
    """Beside iperf3 on all rails in both directions at the same time."""
    bed = [path(options, "testbed"), "--hosts", "2", "--rails", str(options.rails), "--rate", options.rate, "--limit", f"{LIMIT}s", "--"]
    samples, busy = {}, {}
    for _ in range(options.rounds):
        before = processor_time()
        output = text_of([*bed, sys.executable, os.path.abspath(__file__), "iperf", str(options.rails)])
        add(samples, "iperf3", float(output.split()[-1]))
        add(busy, "iperf3", busy_since(before))
        for collective, size in cases(options):
            before = processor_time()
            add(samples, (collective, size), busbw(options, collective, size, bed, []))
            add(busy, (collective, size), busy_since(before))
    print(f"{options.rails} rails of {options.rate}, {options.rounds} rounds; GB/s in each direction")
    report(options, samples, "iperf3", busy)


def iperf(options):
    """One end of iperf3 on every rail; the first host prints what they carry together."""
    is_server = os.environ["RANK"] == "1"
    programs = []
    for rail in range(options.rails):
        ends = [f"10.{rail}.0.{host + 1}" for host in range(2)]
        common = ["iperf3", "-p", str(PORT + rail), "-J"]
        if is_server:
            programs.append(subprocess.Popen([*common, "-s", "-1", "-B", ends[1]], stdout=subprocess.DEVNULL))
        else:
            client = [*common, "-c", ends[1], "-B", ends[0], "--bidir", "-t", str(IPERF_SECONDS), "-O", str(IPERF_OMITTED)]
            programs.append(subprocess.Popen(["sh", "-c", f"for i in 1 2 3 4 5 6 7 8; do sleep 0.3; {' '.join(client)} && exit; done"], stdout=subprocess.PIPE))
    outputs = [program.communicate(timeout=LIMIT)[0] for program in programs]
    if is_server:
        return
    total = 0.0
    for output in outputs:
        # A client that came too early has printed an error before.
        end = json.JSONDecoder().raw_decode(output.decode()[output.decode().rindex('{\n\t"start"'):])[0]["end"]
        total += (end["sum_received"]["bits_per_second"] + end["sum_received_bidir_reverse"]["bits_per_second"]) / 2
    print(total / 8e9)


# The loopback interface


def loopback(options):
    """Beside processes that send each other as much over plain sockets."""
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "raw_sockets")
        subprocess.run(["cc", "-O2", "-o", program, str(PEERS / "raw_sockets.c"), "-lpthread"], check=True)
        samples = {}
        for _ in range(options.rounds):
            for size in options.sizes:
                rounds = text_of([program, str(options.pairs), str(size), "8"]).split()
                # In the first rounds the kernel is still making its buffers larger.
                microseconds = statistics.median(float(round) for round in rounds[2:])
                add(samples, ("sockets", size), options.pairs * size / microseconds / 1e3)
            for collective, size in cases(options):
                hosts = ["--hosts", "2", "--ranks", str(2 * options.pairs)]
                add(samples, (collective, size), busbw(options, collective, size, [], hosts))
    print(f"{2 * options.pairs} processes, {options.rounds} rounds; GB/s in each direction")
    report(options, samples, "sockets")


# Peers


def peers(options):
    """Collectives among two ranks, all over TCP; a broadcast is in place, as those of MPIs are."""
    candidates = {"r2ccl": lambda *case: ours(options, *case)}
    with tempfile.TemporaryDirectory() as folder:
        over_tcp = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
        add_mpi(candidates, folder, "openmpi", ["--allow-run-as-root", *over_tcp], {})
        apart = {"MPIR_CVAR_ODD_EVEN_CLIQUES": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
        add_mpi(candidates, folder, "mpich", [], apart)
        add_intel_mpi(candidates, folder, options.peers.absolute())
        if options.torch:
            candidates["Gloo"] = lambda *case: peer([options.torch, str(PEERS / "gloo_perf.py"), "2"], {}, *case)
        print(f"Medians of {options.rounds} rounds in microseconds, least and most in brackets")
        print(f"| | {' | '.join(candidates)} | best peer / r2ccl |")
        print("|---" * (len(candidates) + 2) + "|")
        for operation in options.operations:
            for size in options.sizes:
                samples = {}
                for _ in range(options.rounds):
                    for name, measure in candidates.items():
                        add(samples, name, measure(operation, size))
                print(f"| {operation} of {name_of(size)} | {' | '.join(map(spread, samples.values()))} | {advantage(samples)} |", flush=True)


def spread(samples):
    """A median, and what it is the median of."""
    return f"{statistics.median(samples):.1f} ({min(samples):.1f} – {max(samples):.1f})"


def advantage(samples):
    """How many times as fast as the fastest peer this library is."""
    medians = {name: statistics.median(times) for name, times in samples.items()}
    own = medians.pop("r2ccl")
    # Blocks are whole multiples of 16 bytes, and MPIs do nothing where there is none: that takes no time.
    real = [median for median in medians.values() if median >= NOTHING_US]
    return f"{min(real) / own:.2f}" if real else "-"


def name_of(size):
    """Bytes in words: the largest unit of which they are a whole number."""
    unit = next((unit for unit in reversed(UNITS) if size % UNITS[unit] == 0), None)
    return f"{size // UNITS[unit]} {unit}B" if unit else f"{size} B"


def calls_of(size):
    """So many calls take long enough, and not too long."""
    return max(10, min(SMALL_CALLS, CALLS_BYTES // size))


def ours(options, operation, size):
    """Microseconds of a call of this library."""
    place = "in-place" if operation == "broadcast" else "out-of-place"
    return results(options, operation, size, [], ["--hosts", "2", "--ranks", "2"], calls_of(size), place)["time"]


def add_mpi(candidates, folder, name, arguments, environment):
    """Adds an MPI of Debian's, if it is installed."""
    launch = [f"mpirun.{name}", *arguments, "-n", "2"]
    add_built(candidates, name, os.path.join(folder, name), [f"mpicc.{name}"], launch, environment)


def add_intel_mpi(candidates, folder, peers):
    """Adds Intel MPI, if it is in a virtual environment there."""
    place = peers / "python"
    environment = {
        "I_MPI_ROOT": str(place), "LD_LIBRARY_PATH": str(place / "lib"), "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
        "I_MPI_FABRICS": "ofi", "I_MPI_OFI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo", "I_MPI_COLL_INTRANODE": "pt2pt",
    }
    build = ["gcc", f"-I{place}/include", f"-L{place}/lib", f"-Wl,-rpath,{place}/lib"]
    launch = [str(place / "bin" / "mpirun"), "-n", "2"]
    add_built(candidates, "Intel MPI", os.path.join(folder, "intel"), build, launch, environment, ["-lmpi"])


def add_built(candidates, name, program, compiler, launch, environment, links=()):
    """Adds a library for which the benchmark of MPIs has to be compiled first, if it can be."""
    sources = [str(PEERS / source) for source in ("collective_perf.c", "waiting.c", "mpi_perf.c")]
    try:
        subprocess.run([*compiler, "-O3", "-o", program, *sources, *links], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"not measured: {name}: {error}", file=sys.stderr)
        return
    candidates[name] = lambda *case: peer([*launch, program], environment, *case)


def peer(command, environment, operation, size):
    """Microseconds of a call of another library, which has checked its results."""
    command = [*command, operation, f"{size}:{UNTIMED}:{calls_of(size)}"]
    _, microseconds, wrong = text_of(command, env={**os.environ, **environment}).split()[-3:]
    if wrong != "0":
        sys.exit(f"{command[0]}: {wrong} wrong elements")
    return float(microseconds)


# Common


def cases(options):
    return [(collective, size) for collective in COLLECTIVES for size in options.sizes]


def busbw(options, collective, size, bed, flags):
    """Gigabytes per second that go over the wire in each direction."""
    return results(options, collective, size, bed, flags, max(2, (256 << 20) // size))["bus_bw"]


def results(options, collective, size, bed, flags, calls, place="out-of-place"):
    """The row of nccl-tests' table as a dictionary."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        size = str(size)
        binary = [path(options, f"{collective}_perf"), *flags]
        untimed = ["-w", str(UNTIMED), "--warm-up-form", place]
        text_of([*bed, *binary, "-b", size, "-e", size, "-n", str(calls), *untimed, "-c", "1", "-J", report])
        row = json.loads(Path(report).read_text())["results"][0][place.replace("-", "_")]
    if row["nwrong"]:
        sys.exit(f"{collective}: {row['nwrong']} wrong elements")
    return row


def report(options, samples, base, busy=None):
    """A Markdown table of shares."""
    print(f"| | {' | '.join(f'{size >> 20} MB' for size in options.sizes)} |")
    print("|---" * (1 + len(options.sizes)) + "|")
    bases = [statistics.median(samples.get((base, size), samples.get(base))) for size in options.sizes]
    used = f" ({100 * statistics.median(busy[base]):.0f} % busy)" if busy else ""
    print(f"| {base} | {' | '.join(f'{bandwidth:.3f}{used}' for bandwidth in bases)} |")
    for collective in COLLECTIVES:
        cells = []
        for size, bandwidth in zip(options.sizes, bases):
            own, rounds = statistics.median(samples[collective, size]), samples[collective, size]
            used = f", {100 * statistics.median(busy[collective, size]):.0f} % busy" if busy else ""
            spread = f"{min(rounds):.3f} – {max(rounds):.3f}"
            cells.append(f"{own:.3f} ({spread}): {100 * own / bandwidth:.1f} %{used}")
        print(f"| {collective} | {' | '.join(cells)} |")


def processor_time():
    """Busy and all time of the processors since they were started, in any unit."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def busy_since(before):
    """The share of the processors' time that was used."""
    busy, passed = (late - early for early, late in zip(before, processor_time()))
    return busy / passed


def path(options, name):
    return os.path.abspath(os.path.join(options.build, name))


def text_of(command, **settings):
    """What a program prints; ends with what went wrong."""
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False, **settings)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {run.returncode}\n{run.stderr[-2000:]}")
    return run.stdout


def add(samples, name, value):
    samples.setdefault(name, []).append(value)


if __name__ == "__main__":
    main()
