"""Where the library of r2ccl and its C header are."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

LIBRARY_VARIABLE = "R2CCL_LIBRARY"
"""Environment variable that names the shared library, in place of the one of the package."""

_REPOSITORY = Path(__file__).resolve().parents[3]


def library_path() -> Path:
    """The shared library with the C interface.

    It is the one that ``R2CCL_LIBRARY`` names, else that of the package ``r2ccl``, else one that
    ``cargo build --release -p ccl-capi`` has left in the repository around this file.

    Raises:
        FileNotFoundError: there is none.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return _existing(Path(named), f"{LIBRARY_VARIABLE} names")
    packaged = _from_package("library_path")
    if packaged is not None:
        return packaged
    built = _REPOSITORY / "target" / "release" / "libr2ccl.so"
    return _existing(
        built, f"the package r2ccl has no library, {LIBRARY_VARIABLE} is not set, and there is no"
    )


def include_path() -> Path:
    """The folder with ``r2ccl/ccl.h``.

    Raises:
        FileNotFoundError: there is none.
    """
    packaged = _from_package("include_path")
    if packaged is not None:
        return packaged
    header = _existing(
        _REPOSITORY / "capi" / "include" / "r2ccl" / "ccl.h",
        "the package r2ccl has no header, nor is there",
    )
    return header.parents[1]


def _from_package(function: str) -> Path | None:
    """What a function of the package answers, if it has it and the answer exists."""
    package = importlib.import_module("r2ccl")
    ask = getattr(package, function, None)
    if ask is None:
        return None
    answer = Path(ask())
    return answer if answer.exists() else None


def _existing(path: Path, reason: str) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{reason} {path}")
    return path
