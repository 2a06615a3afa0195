"""The PyTorch backend: ``torch.distributed.init_process_group("r2ccl")``.

Importing this module registers the backend; an installed package does it with ``import torch``.
Only the first process group compiles the C++ part (:mod:`r2ccl.torch.build`) and loads the library.

:func:`health` tells how the rails of a group are, :func:`on_fault` calls back when that changes. A
rail that dies is no error: the collective finishes on those that are left. :func:`lost_ranks` tells which ranks a
group has to go on without, :func:`shrink_group` makes a group of the others.
"""

from __future__ import annotations

import functools
import os
import warnings
from types import ModuleType
from typing import Any

from r2ccl.torch.health import (
    FaultWatch,
    RailHealth,
    RailState,
    RailVerdict,
    health,
    lost_ranks,
    on_fault,
)
from r2ccl.torch.shrinking import shrink_group

__all__ = [
    "BACKEND",
    "FaultWatch",
    "RailHealth",
    "RailState",
    "RailVerdict",
    "health",
    "lost_ranks",
    "on_fault",
    "register",
    "shrink_group",
]

BACKEND = "r2ccl"
"""Name of the backend."""

_FAULT_VARIABLE = "R2CCL_FAULT"


def register() -> None:
    """Makes the backend known to ``torch.distributed``, for the host and CUDA devices; does it once."""
    import torch.distributed as dist

    if dist.is_available() and BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])


@functools.cache
def native() -> ModuleType:
    """The compiled part of the backend; compiles it if that has not been done.

    Raises:
        r2ccl.torch.build.BuildError: it cannot be compiled.
        FileNotFoundError: the library of r2ccl is not there.
    """
    from r2ccl.torch import build

    return build.load()


def _create(options: Any, _backend_options: Any) -> Any:
    """Makes the backend of one group; PyTorch calls it on every rank of the group."""
    _warn_of_rehearsal()
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    return native().Backend(
        store=options.store,
        rank=options.group_rank,
        size=options.group_size,
        timeout=options.timeout,
        name=options.group_id,
        global_ranks=ranks,
    )


def _warn_of_rehearsal() -> None:
    """Says that rails will fail on purpose, so that nobody forgets it in production."""
    faults = os.environ.get(_FAULT_VARIABLE)
    if faults:
        warnings.warn(f"{_FAULT_VARIABLE} is set, rails will fail: {faults}", stacklevel=2)


register()
