"""Collective communication that survives NIC failures.

    import numpy, r2ccl

    with r2ccl.Communicator.from_environment() as communicator:  # r2ccl run, torchrun, mpirun or Slurm
        gradient = numpy.ones(1 << 20, numpy.float32)
        communicator.all_reduce(gradient)
        assert (gradient == communicator.size).all()

When a network card, a cable or a port dies in the middle of a collective, the collective finishes on the
cards that remain. `Communicator.health()` tells about them.
"""

from __future__ import annotations

import ctypes
import pathlib
import pickle

from . import _native, errors, health
from ._native import Communicator, Group, ReduceOp, Registration, Request, UniqueId, __version__
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
    "Registration",
    "Request",
    "ResultCode",
    "UniqueId",
    "Verdict",
    "__version__",
    "errors",
    "health",
    "include_path",
    "library_path",
    "mem_alloc",
]


def mem_alloc(nbytes: int) -> memoryview:
    """Zeroed memory that the ranks of a host reach in place, as `ccl_mem_alloc` of the C interface.

    Collectives on large buffers in it are faster, because nothing is staged:

        gradient = numpy.frombuffer(r2ccl.mem_alloc(4 << 20), numpy.float32)

    It lives as long as anything that looks into it. To allocate it, and to reach it the first time, takes much longer
    than to use it: allocate once.

    Raises:
        r2ccl.InvalidArgumentError: `nbytes` is not positive.
        r2ccl.OperatingSystemError: There is not so much memory.
    """
    memory = _native.Memory(nbytes)
    lender = (ctypes.c_ubyte * nbytes).from_address(memory.address)
    lender._memory = memory  # type: ignore[attr-defined]  # arrays have room for attributes
    # Not memoryview(lender), whose format is "<B", which nothing can be cast to.
    return pickle.PickleBuffer(lender).raw()


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
