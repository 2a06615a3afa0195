"""Compiles the C++ part of the backend, once for each version of PyTorch.

PyTorch has no stable binary interface for process groups, so the module is compiled against the
headers of the installed version when it is first needed. It is kept in a folder of the user's cache
whose name tells the versions and the digest of the sources. Ranks that start at once do it once:
the first takes a lock, the others wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import logging
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch
from r2ccl.torch import locate

MODULE = "r2ccl_torch"
"""Name of the compiled module."""

CACHE_VARIABLE = "R2CCL_TORCH_CACHE"
"""Environment variable that names the folder for compiled modules."""

_SOURCES = Path(__file__).resolve().parent / "csrc"
_OLDEST_TORCH = (2, 11)
"""What is tried; older versions have no copies of stores, which the module needs."""
_COMPILE_SECONDS = 1800
_LOCK_POLL_SECONDS = 0.05
_LOG = logging.getLogger(__name__)


class BuildError(RuntimeError):
    """The module cannot be compiled; the message says why and what to do."""


def load() -> ModuleType:
    """The compiled module, with the library of r2ccl opened.

    Raises:
        BuildError: PyTorch is too old, there is no compiler, it failed, or there is no folder for the module.
        FileNotFoundError: the library or its header is not there.
    """
    module = _import(compiled())
    module.open_library(str(locate.library_path()))
    return module


def compiled() -> Path:
    """The file of the module, compiled if that has not been done.

    Raises:
        BuildError: PyTorch is too old, there is no compiler, it failed, or there is no folder for the module.
    """
    _check_torch()
    folder = _cache_folder() / _name_of_build()
    target = folder / f"{MODULE}.so"
    if target.exists():
        return target
    _make(folder)
    with _locked(folder / "lock"):
        if not target.exists():
            _compile(target)
    return target


def _check_torch() -> None:
    if _torch_version() < _OLDEST_TORCH:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        raise BuildError(
            f"the backend needs PyTorch {oldest} or later, this is {torch.__version__}: install a newer one"
        )


def _import(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _name_of_build() -> str:
    """Distinguishes whatever would make another module."""
    digest = hashlib.sha256()
    for file in [*sorted(_SOURCES.iterdir()), locate.include_path() / "r2ccl" / "ccl.h"]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    digest.update(repr([_standard(), os.environ.get("CXX"), torch.__file__]).encode())
    abi = int(torch.compiled_with_cxx11_abi())
    tag = sys.implementation.cache_tag
    return f"torch-{torch.__version__}-{tag}-abi{abi}-{digest.hexdigest()[:16]}"


def _cache_folder() -> Path:
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "r2ccl"
    try:
        return Path.home() / ".cache" / "r2ccl"
    except RuntimeError as error:
        raise BuildError(
            f"there is no home for compiled modules ({error}): set {CACHE_VARIABLE} to a folder"
        ) from error


def _make(folder: Path) -> None:
    """The folder, into which this user writes."""
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "lock").touch()
    except OSError as error:
        raise BuildError(
            f"{folder} cannot be made or written ({error}): set {CACHE_VARIABLE} to a folder that can"
        ) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock of a file; the kernel gives it back if the process dies."""
    deadline = time.monotonic() + _COMPILE_SECONDS
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BuildError(
                        f"another process has held {path} for {_COMPILE_SECONDS} s"
                    ) from None
                time.sleep(_LOCK_POLL_SECONDS)
        yield


def _compile(target: Path) -> None:
    """Compiles into a file of its own, then gives it its name: nobody sees half a module."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        command = _command(made)
        # Not wrong, but whoever waits for half a minute wants to know for what: programs show warnings.
        _LOG.warning(
            "r2ccl compiles its backend for PyTorch %s, once: %s", torch.__version__, target
        )
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BuildError(
                f"the compiler took more than {_COMPILE_SECONDS} s: {command[0]}"
            ) from error
        if done.returncode != 0:
            raise BuildError(f"{shlex.join(command)}\nfailed:\n{done.stderr}")
        made.replace(target)


def _command(output: Path) -> list[str]:
    root = Path(torch.__file__).resolve().parent
    includes = [
        root / "include",
        root / "include" / "torch" / "csrc" / "api" / "include",
        Path(sysconfig.get_paths()["include"]),
    ]
    return [
        *_compiler(),
        f"-std={_standard()}",
        *("-O2", "-shared", "-fPIC", "-fvisibility=hidden"),
        f"-DTORCH_EXTENSION_NAME={MODULE}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(argument for folder in includes for argument in ("-isystem", str(folder))),
        f"-I{locate.include_path()}",
        str(_SOURCES / "module.cpp"),
        *("-o", str(output), f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}"),
        *("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
    ]


def _compiler() -> list[str]:
    """The compiler that ``CXX`` names, else the first that there is."""
    named = shlex.split(os.environ.get("CXX", ""))
    for candidate in [named] if named else [["g++"], ["c++"], ["clang++"]]:
        if shutil.which(candidate[0]):
            return candidate
    looked_for = named[0] if named else "g++, c++ or clang++"
    raise BuildError(
        f"the backend is compiled when it is first used, but there is no {looked_for}: "
        "install a C++ compiler, or set CXX to one"
    )


def _standard() -> str:
    """The oldest C++ that the headers of this PyTorch can be compiled with."""
    return "c++20" if _torch_version() >= (2, 15) else "c++17"


def _torch_version() -> tuple[int, int]:
    major, minor = (int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return major, minor
