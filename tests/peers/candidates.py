"""The libraries that compare.py can measure: how each is built, started, and made to feel at home."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable

PEERS = Path(__file__).resolve().parent
REPOSITORY = PEERS.parent.parent

OURS = "r2ccl"
REGISTERED = "r2ccl registered"
IN_C = "r2ccl in C"
# What the memory allows, by what is held against it: ordinary buffers cannot be read by others.
LIMITS = {OURS: "ordinary limit", REGISTERED: "limit"}
# What is no peer: this library, and what the memory allows.
OWN = (OURS, REGISTERED, IN_C, *LIMITS.values())
PEER_LIBRARIES = ("Open MPI", "MPICH", "Intel MPI", "oneCCL", "Gloo")

DEBIAN_PACKAGES = ["openmpi-bin", "libopenmpi-dev", "mpich", "libmpich-dev", "g++"]
# Of PyPI: the libraries of Intel with their headers, and what draws the chart.
PYTHON_PACKAGES = ["impi-devel", "oneccl-devel", "matplotlib"]
FLAGS = ["-O3", "-Wall", "-Wextra"]

# What the programs of all peers have in common.
SOURCES = [str(PEERS / "collective_perf.c"), str(PEERS / "waiting.c")]

LIBRARY = "r2ccl"  # as a linker calls it



@dataclass
class Plan:
    """What is measured in one run of one candidate."""

    operation: str
    ranks: int
    sizes: list  # of bytes
    timeout: float  # seconds without a finished size

    def arguments(self):
        """The command line that the programs of the peers have in common."""
        sizes = [f"{size}:{untimed(size)}:{iterations(size)}" for size in self.sizes]
        return [self.operation, *sizes]


@dataclass
class Candidate:
    """A library under measurement, and how it is started."""

    name: str
    command: Callable  # (plan), returns a list of words
    version: str
    # Whether a run is for one size and leaves its results in a report.
    reports: bool = False
    environment: Callable = lambda plan: {}


class Absent(Exception):
    """A candidate cannot run here."""


def iterations(size):
    """Timed calls of a size: fewer where each of them takes long, but so many that those are few in
    which a library finds its way, or uses memory for the first time."""
    if size <= 1 << 10:
        return 5000
    if size <= 64 << 10:
        return 1000
    if size <= 4 << 20:
        return 100
    return 20 if size <= 16 << 20 else 10


def untimed(size):
    """Calls before the timed ones, in which a library uses memory for the first time and tries what is faster."""
    if size < 1 << 20:
        return 90
    return 40 if size <= 64 << 20 else 30


def is_crowded(plan):
    """Whether ranks must share processors."""
    return plan.ranks > os.cpu_count()


def find(folder, torch):
    """The candidates that can run here, and a line about each that cannot."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = build_ours()
    found, missing = [ours(programs), registered(programs)], []
    searches = {
        IN_C: partial(in_c, programs),
        "Open MPI": open_mpi,
        "MPICH": mpich,
        "Intel MPI": intel_mpi,
        "oneCCL": one_ccl,
    }
    for name, search in searches.items():
        try:
            found.append(search(folder))
        except (OSError, subprocess.CalledProcessError, Absent) as error:
            missing.append(f"{name}: {error}")
    if torch:
        found.append(gloo(torch))
    else:
        missing.append("gloo: no --torch PYTHON was given")
    return [*found, *limits(programs)], missing


# This library, and the machine


def build_ours():
    """The programs of this repository by name, built for release."""
    build = ["cargo", "build", "--release", "--message-format=json"]
    wanted = (["-p", "ccl-tests", "-p", "ccl-capi", "--bins", "--lib"],
              ["-p", "ccl-kernels", "--example", "yardsticks"])
    lines = "".join(text_of([*build, *words], cwd=REPOSITORY) for words in wanted).splitlines()
    messages = [json.loads(line) for line in lines if line.startswith("{")]
    files = [
        (message["target"]["name"], file)
        for message in messages
        for file in [message.get("executable"), *message.get("filenames", ())]
        if file and (message.get("executable") or file.endswith(f"lib{LIBRARY}.so"))
    ]
    return dict(files)


def ours(programs):
    """This library with buffers that a program has anyway."""
    return Candidate(OURS, perf_command(programs, 0), "commit " + commit(), reports=True)


def registered(programs):
    """This library with buffers from `ccl_mem_alloc`, registered, which peers read in place."""
    return Candidate(REGISTERED, perf_command(programs, 1), "the same", reports=True)


def in_c(programs, folder):
    """This library as C programs call it, measured by the program that measures its peers. Open MPI starts it."""
    library = folder / "lib"
    library.mkdir(exist_ok=True)
    for name in (f"lib{LIBRARY}.so", f"lib{LIBRARY}.so.0"):
        shutil.copy(programs[LIBRARY], library / name)
    headers = f"-I{REPOSITORY / 'capi' / 'include'}"
    links = [headers, f"-L{library}", f"-l{LIBRARY}", f"-Wl,-rpath,{library}"]
    program = compile_mpi("mpicc.openmpi", folder, "r2ccl_perf", links)
    return Candidate(IN_C, open_mpi_command(program), "the same")


def perf_command(programs, register):
    """One run of a perf binary, with memory as `-R` has it."""

    def command(plan):
        size = str(plan.sizes[0])
        return [
            programs[f"{plan.operation}_perf"],
            *("--ranks", str(plan.ranks), "-b", size, "-e", size, "-R", str(register)),
            *("-n", str(iterations(plan.sizes[0])), "-w", str(untimed(plan.sizes[0])), "-c", "1"),
            # As compare.py reads it.
            *(["--warm-up-form", "in-place"] if plan.operation == "broadcast" else []),
        ]

    return command


def limits(programs):
    """What the memory allows: the bytes that a collective must move at least, and nobody waits."""

    def command(prefix, plan):
        calls = [f"{prefix}{plan.operation}:{size}:{iterations(size)}" for size in plan.sizes]
        return [programs["yardsticks"], str(plan.ranks), *calls]

    for name, prefix in ((OURS, "ordinary_"), (REGISTERED, "")):
        yield Candidate(LIMITS[name], partial(command, prefix), "kernels/examples/yardsticks")


# The peers


def open_mpi(folder):
    """Open MPI. When there are more ranks than cores, they must yield, and are bound as ours are."""
    program = compile_mpi("mpicc.openmpi", folder)
    version = first_line(["mpirun.openmpi", "--version"]).split()[-1]
    return Candidate("Open MPI", open_mpi_command(program), version)


def open_mpi_command(program):
    """How Open MPI starts the ranks of a program."""
    launch = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"]

    def command(plan):
        sharing = ["--mca", "mpi_yield_when_idle", "1", "--map-by", "core"]
        sharing += ["--bind-to", "core:overload-allowed"]
        sharing = sharing if is_crowded(plan) else []
        return [*launch, *sharing, "-n", str(plan.ranks), program, *plan.arguments()]

    return command


def mpich(folder):
    """MPICH."""
    program = compile_mpi("mpicc.mpich", folder)

    def command(plan):
        return ["mpirun.mpich", "-n", str(plan.ranks), program, *plan.arguments()]

    version = text_of(["mpichversion"]).split("\n")[0].split(":")[-1].strip()
    return Candidate("MPICH", command, version)


def compile_mpi(compiler, folder, library="mpi_perf", links=()):
    """The program that measures `library`, for the MPI to which `compiler` belongs."""
    program = str(folder / compiler.replace("mpicc", library))
    sources = [*SOURCES, str(PEERS / f"{library}.c")]
    subprocess.run([compiler, *FLAGS, "-o", program, *sources, *links], check=True)
    return program


def intel_mpi(folder):
    """Intel MPI. It needs no network here; crowded ranks yield, and are bound as ours are."""
    place = intel_place(folder, "libmpi.so", "impi-devel")
    program = str(folder / "mpi_perf.intel")
    sources = [*SOURCES, str(PEERS / "mpi_perf.c")]
    subprocess.run(["gcc", *FLAGS, "-o", program, *sources, *intel_links(place, "mpi")], check=True)
    return Candidate("Intel MPI", intel_command(place, program),
                     intel_version(place, "impi-rt"), environment=intel_environment(place))


def one_ccl(folder):
    """oneCCL over Intel MPI. Crowded ranks never yield in its own algorithms, so that a call takes
    many milliseconds there; they do where it leaves a collective to the MPI."""
    place = intel_place(folder, "libccl.so", "oneccl-devel")
    program = str(folder / "oneccl_perf")
    links = intel_links(place, "ccl", "mpi")
    subprocess.run(["gcc", *FLAGS, "-c", *SOURCES, *links[:1]], cwd=folder, check=True)
    common = [Path(source).with_suffix(".o").name for source in SOURCES]
    source = str(PEERS / "oneccl_perf.cpp")
    subprocess.run(["g++", "-std=c++17", *FLAGS, "-o", program, source, *common, *links], cwd=folder,
                   check=True, stderr=subprocess.DEVNULL)  # The linker knows two versions of libccl.
    collectives = ("ALLREDUCE", "ALLGATHER", "REDUCE_SCATTER", "BCAST", "BROADCAST", "ALLTOALL")
    left_to_mpi = {f"CCL_{name}": "direct" for name in collectives} | {"CCL_ATL_SYNC_COLL": "1"}
    below = intel_environment(place)

    def environment(plan):
        return below(plan) | (left_to_mpi if is_crowded(plan) else {}) | {"CCL_LOG_LEVEL": "error"}

    return Candidate("oneCCL", intel_command(place, program),
                     intel_version(place, "oneccl"), environment=environment)


def intel_place(folder, library, package):
    """The virtual environment into which `install` puts what Intel has on PyPI."""
    place = folder / "python"
    if not (place / "lib" / library).exists():
        raise Absent(f"{package} is not installed; --install gets it from PyPI")
    return place


def intel_links(place, *libraries):
    """What a compiler must know; where the headers are comes first."""
    libraries = [f"-l{library}" for library in libraries]
    return [f"-I{place}/include", f"-L{place}/lib", *libraries, f"-Wl,-rpath,{place}/lib"]


def intel_command(place, program):
    """How ranks are started with Intel MPI."""

    def command(plan):
        launch = [str(place / "bin" / "mpirun"), "-n", str(plan.ranks)]
        return [*launch, program, *plan.arguments()]

    return command


def intel_environment(place):
    """The settings of Intel MPI for one host."""

    def environment(plan):
        settings = {
            "I_MPI_ROOT": str(place),
            "LD_LIBRARY_PATH": str(place / "lib"),
            "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
            "I_MPI_FABRICS": "shm",
        }
        processors = ",".join(str(number) for number in sorted(os.sched_getaffinity(0)))
        crowd = {"I_MPI_THREAD_YIELD": "2", "I_MPI_PIN_PROCESSOR_LIST": processors}
        return settings | (crowd if is_crowded(plan) else {})

    return environment


def intel_version(place, package):
    """The version of an installed package."""
    code = f"from importlib.metadata import version; print(version('{package}'))"
    return first_line([str(place / "bin" / "python"), "-c", code])


def gloo(python):
    """Gloo, as PyTorch contains it."""

    def command(plan):
        script = str(PEERS / "gloo_perf.py")
        return [python, script, str(plan.ranks), *plan.arguments()]

    version = first_line([python, "-c", "import torch; print(torch.__version__)"])
    return Candidate("Gloo", command, f"in PyTorch {version}")


def install(folder):
    """Installs the MPIs, which needs root on a Debian system, and packages of Python below `folder`."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-q"], check=True)
    subprocess.run(["apt-get", "install", "-qy", *DEBIAN_PACKAGES], check=True, env=environment)
    place = folder / "python"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "-q"]
    subprocess.run([*pip, *PYTHON_PACKAGES], check=True)


# Programs


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
