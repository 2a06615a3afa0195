"""Collective communication that survives NIC failures.

    import numpy, r2ccl

    with r2ccl.Communicator.from_environment() as communicator:  # torchrun, mpirun or Slurm
        gradient = numpy.ones(1 << 20, numpy.float32)
        communicator.all_reduce(gradient)
        assert (gradient == communicator.size).all()

When a network card, a cable or a port dies in the middle of a collective, the collective finishes on the
cards that remain. `Communicator.health()` tells about them.
"""

from __future__ import annotations

import pathlib

from . import _native, errors, health
from ._native import Communicator, Group, ReduceOp, Request, UniqueId, __version__
from .errors import (
    AbortedError,
    CudaError,
    DeadlineError,
    DisagreementError,
    Error,
    InternalError,
    InvalidArgumentError,
    InvalidUsageError,
    OperatingSystemError,
    PeerLostError,
    ResultCode,
)
from .health import RailCounters, RailHealth, RailState, Verdict

__all__ = [
    "AbortedError",
    "Communicator",
    "CudaError",
    "DeadlineError",
    "DisagreementError",
    "Error",
    "Group",
    "InternalError",
    "InvalidArgumentError",
    "InvalidUsageError",
    "OperatingSystemError",
    "PeerLostError",
    "RailCounters",
    "RailHealth",
    "RailState",
    "ReduceOp",
    "Request",
    "ResultCode",
    "UniqueId",
    "Verdict",
    "__version__",
    "errors",
    "health",
    "include_path",
    "library_path",
]


def library_path() -> pathlib.Path:
    """The shared object with the C interface, which is also the extension module of this package.

    Load it with `ctypes.CDLL` or `dlopen`, not by linking: a process must have it once only.
    """
    file = _native.__file__
    assert file is not None, "an extension module has a file"
    return pathlib.Path(file).resolve()


def include_path() -> pathlib.Path:
    """The folder to give to `-I` for `#include <r2ccl/ccl.h>`."""
    return pathlib.Path(__file__).resolve().parent / "include"
