#!/usr/bin/env python3
"""Makes a PyTorch that was built for CUDA importable on a machine without CUDA.

For every library of CUDA that PyTorch's own libraries are linked with and that is not there, it
compiles a stub of the same name with the same functions and symbol versions, each of which returns
the error "no device". They lie in the last folder that PyTorch searches, so real ones win. Run by
the Python whose PyTorch is meant; needs cc, readelf and nm.
"""

from __future__ import annotations

import re
import subprocess
import sysconfig
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

NO_DEVICE = "return 100;"
# Of NVRTC, which has numbers of its own: an internal error.
NO_COMPILER = "return 11;"

CUDA_LIBRARY = re.compile(
    r"^lib(cudart|cupti|cublasLt|cublas|cusparseLt|cusparse|cufft|cufile|cusolver|cudnn|nccl|nvrtc"
    r"|nvshmem_host|nvToolsExt|curand|nvJitLink)\.so"
)

# Which library a function without a symbol version belongs to; the first prefix that fits counts.
LIBRARY_OF_PREFIX = {
    "cusparseLt": "libcusparseLt",
    "cusparse": "libcusparse.",
    "cusolver": "libcusolver",
    "nccl": "libnccl",
    "cuFile": "libcufile",
    "nvrtc": "libnvrtc",
    "cudnn": "libcudnn",
    "cupti": "libcupti",
    "nvshmem": "libnvshmem",
    "nvJitLink": "libnvJitLink",
    "curand": "libcurand",
    "cublasLt": "libcublasLt",
    "cublas": "libcublas.",
    "cufft": "libcufft",
    "__cuda": "libcudart",
    "cuda": "libcudart",
}

# Functions whose result is looked at by `import torch` or when it asks whether there is a GPU.
BODIES = {
    "__cudaRegisterFatBinary": "static void *handle[8]; return (long)handle;",
    "cudaGetLastError": "return 0;",
    "cudaPeekAtLastError": "return 0;",
    "cudaGetErrorString": 'return (long)"no CUDA on this machine";',
    "cudaGetErrorName": 'return (long)"cudaErrorNoDevice";',
    "nvrtcGetErrorString": 'return (long)"no NVRTC on this machine";',
    "ncclGetErrorString": 'return (long)"no NCCL on this machine";',
    "ncclGetLastError": 'return (long)"no NCCL on this machine";',
    "cudnnGetVersion": "return 0;",
    "cudnnGetErrorString": 'return (long)"no cuDNN on this machine";',
    "cufileop_status_error": 'return (long)"no cuFile on this machine";',
}


@dataclass
class Wanted:
    """What PyTorch's libraries want from others.

    Attributes:
        libraries: of CUDA that are not beside them.
        versions: symbol versions of each library.
        by_version: functions of each symbol version.
        plain: functions without one.
    """

    libraries: set[str] = field(default_factory=set)
    versions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    by_version: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    plain: set[str] = field(default_factory=set)

    def functions_of(self, library: str) -> set[str]:
        versioned = (self.by_version[version] for version in self.versions[library])
        return set().union(
            *versioned, (name for name in self.plain if library_prefix(name, library))
        )


def main() -> None:
    folder = torch_folder()
    wanted = wants_of(sorted(folder.glob("*.so")), {path.name for path in folder.glob("*.so*")})
    for library in sorted(wanted.libraries):
        functions = wanted.functions_of(library)
        compile_stub(folder / library, functions, wanted.versions[library])
        print(f"{library}: {len(functions)} functions")


def torch_folder() -> Path:
    """Where PyTorch's own libraries are."""
    return Path(sysconfig.get_paths()["purelib"]) / "torch" / "lib"


def wants_of(own: list[Path], present: set[str]) -> Wanted:
    wanted = Wanted()
    for path in own:
        needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\]", output_of("readelf", "-dW", str(path))))
        missing = {name for name in needed if CUDA_LIBRARY.match(name)} - present
        if missing:
            wanted.libraries |= missing
            collect_functions(path, wanted)
            collect_versions(path, missing, wanted)
    return wanted


def collect_functions(path: Path, wanted: Wanted) -> None:
    for line in output_of("nm", "-D", "--undefined-only", str(path)).splitlines():
        name, _, version = line.split()[-1].partition("@")
        if version:
            wanted.by_version[version.lstrip("@")].add(name)
        else:
            wanted.plain.add(name)


def collect_versions(path: Path, libraries: set[str], wanted: Wanted) -> None:
    """Which library has which symbol versions, from the section that lists what is needed."""
    library = ""
    for line in output_of("readelf", "-VW", str(path)).splitlines():
        if file := re.search(r"File: (\S+)", line):
            library = file.group(1)
        elif (version := re.search(r"Name: (\S+)\s+Flags", line)) and library in libraries:
            wanted.versions[library].add(version.group(1))


def library_prefix(function: str, library: str) -> bool:
    for prefix, start in LIBRARY_OF_PREFIX.items():
        if function.startswith(prefix):
            return library.startswith(start)
    return False


def compile_stub(
    path: Path, functions: set[str], versions: set[str], others: str = ""
) -> None:
    """Makes a library of these functions, and of the text of others in C."""
    source = others + "".join(
        f"long {name}() {{ {BODIES.get(name, default_body(name))} }}\n" for name in sorted(functions)
    )
    with tempfile.TemporaryDirectory() as scratch:
        code, script = Path(scratch, "stub.c"), Path(scratch, "versions")
        code.write_text(source)
        script.write_text("".join(f"{version} {{ global: *; }};\n" for version in sorted(versions)))
        command = [
            "cc",
            "-w",
            "-std=gnu11",
            "-O1",
            "-shared",
            "-fPIC",
            "-s",
            "-o",
            str(path),
            str(code),
            f"-Wl,-soname,{path.name}",
        ]
        if versions:
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)


def default_body(function: str) -> str:
    return NO_COMPILER if function.startswith("nvrtc") else NO_DEVICE


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
