"""Groups that go on without some of their ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from r2ccl.torch.health import _backend

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup


def shrink_group(
    ranks_to_exclude: list[int], group: ProcessGroup | None = None, shrink_flags: int = 0
) -> ProcessGroup:
    """:func:`torch.distributed.shrink_group`, and what that of PyTorch 2.15 leaves undone.

    The new group is for tensors of the host and of devices, as ``group`` was, and not of one of them. Its global ranks
    are right where ``group`` is not the default group, too; those of a default group count anew.

    Args:
        ranks_to_exclude: ranks of ``group``, such as :func:`lost_ranks` tells; the same on all ranks that are left.
        group: a group of this backend; the default group if None.
        shrink_flags: 1 (``SHRINK_ABORT``) aborts the group first.

    Raises:
        TypeError: the group has other backends.
        torch.distributed.DistBackendError: ranks that are not excluded did not come, or exclude others, or ranks that
            are excluded go on, too.
    """
    from torch.distributed import distributed_c10d as c10d

    before = c10d._get_default_group() if group is None else group
    backend = _backend(before)
    devices = [one for one in before._device_types if _is(before, one, backend)]
    left = [
        global_rank
        for rank, global_rank in enumerate(c10d.get_process_group_ranks(before))
        if rank not in ranks_to_exclude
    ]
    is_default = before == c10d._get_default_group()
    shrunk = c10d.shrink_group(ranks_to_exclude, before, shrink_flags)
    for device in devices:
        if device not in shrunk._device_types:
            shrunk._register_backend(device, c10d.ProcessGroup.BackendType.CUSTOM, _backend(shrunk))
    # Of the default group they count anew.
    c10d._world.pg_group_ranks[shrunk] = {
        rank if is_default else global_rank: rank for rank, global_rank in enumerate(left)
    }
    return shrunk


def _is(group: ProcessGroup, device: torch.device, backend: object) -> bool:
    chosen = group._get_backend(device)
    return getattr(chosen, "wrapped_pg", chosen) is backend
