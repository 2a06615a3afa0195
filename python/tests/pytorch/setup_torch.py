#!/usr/bin/env python3
"""Puts the smallest PyTorch that can train on processors into a virtual environment::

    python3 setup_torch.py FOLDER

PyPI has builds for CUDA only, and what they want from NVIDIA is three times as large as PyTorch.
None of it is called on a machine without a GPU, so the wheel is installed without its dependencies,
and ``cuda_stubs.py`` makes libraries in their place. About 600 MB of downloads and 1.5 GB on disk.

Does nothing where that has been done. Where it cannot be done it prints a line that begins with
``skip:`` and ends with status 77.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.15.0"
OTHERS = [
    "filelock",
    "typing-extensions>=4.13",
    "sympy",
    "networkx",
    "jinja2",
    "fsspec",
    "numpy",
    "pytest",
]
NEEDED_BYTES = 3_000_000_000
SKIPPED = 77
INSTALL_SECONDS = 1800
WORKS = (
    "import torch, numpy, pytest, torch.distributed as d;"
    "assert d.is_gloo_available(); print(torch.__version__)"
)


class CannotBeDone(Exception):
    """Why this machine cannot have PyTorch."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, help="of the virtual environment; made if it is not there"
    )
    folder = parser.parse_args().folder.absolute()
    try:
        set_up(folder)
    except CannotBeDone as reason:
        print(f"skip: {reason}")
        return SKIPPED
    return 0


def set_up(folder: Path) -> None:
    """Makes the environment usable.

    Raises:
        CannotBeDone: something that is needed is missing.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        check_machine(folder)
        venv.create(folder, with_pip=True)
    version = working_version(python)
    if version is None:
        check_machine(folder)
        pip(python, "--no-deps", TORCH)
        pip(python, *OTHERS)
        run(
            [str(python), str(Path(__file__).with_name("cuda_stubs.py"))],
            "making stubs of CUDA's libraries",
        )
        version = working_version(python)
    if version is None:
        raise CannotBeDone(f"{TORCH} is installed in {folder}, but cannot be imported")
    print(f"PyTorch {version} in {folder}")


def check_machine(folder: Path) -> None:
    """Raises CannotBeDone where the disk is too small or a tool is missing."""
    place = next(parent for parent in [folder, *folder.parents] if parent.exists())
    free = shutil.disk_usage(place).free
    if free < NEEDED_BYTES:
        raise CannotBeDone(
            f"PyTorch needs {NEEDED_BYTES / 1e9:.0f} GB in {place}, {free / 1e9:.1f} GB are free"
        )
    missing = [tool for tool in ("cc", "readelf", "nm") if shutil.which(tool) is None]
    if missing:
        raise CannotBeDone(
            f"there is no {', '.join(missing)}, which the stubs of CUDA's libraries need"
        )


def working_version(python: Path) -> str | None:
    """The version of PyTorch, if all that the tests need can be imported.

    Without the package r2ccl, which PyTorch loads by itself: neither the one that is installed, nor the
    sources in the current folder.
    """
    done = subprocess.run(
        [str(python), "-I", "-c", WORKS],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_SECONDS,
    )
    return done.stdout.strip() if done.returncode == 0 else None


def pip(python: Path, *wanted: str) -> None:
    """Installs packages."""
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-cache-dir",
        "--disable-pip-version-check",
    ]
    run([*command, *wanted], f"installing {wanted[-1]}")


def run(command: list[str], what: str) -> None:
    """Runs a command; a failure is a reason to skip, with the last line of what it said."""
    try:
        done = subprocess.run(
            command, stderr=subprocess.PIPE, text=True, check=False, timeout=INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise CannotBeDone(f"{what} took more than {INSTALL_SECONDS} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise CannotBeDone(f"{what} failed: {lines[-1] if lines else done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
