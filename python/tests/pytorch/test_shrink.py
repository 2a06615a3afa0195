"""Groups that go on without ranks that are lost."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from worlds import die, meet, outcomes_of, run_world

import r2ccl.torch


def members(group: dist.ProcessGroup | None, name: int) -> list[int]:
    """The names of all ranks of a group, which works."""
    own = torch.tensor([name])
    gathered = [torch.zeros_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, own, group=group)
    return [int(one) for one in gathered]


def default_group_without(victims: list[int]) -> list[int] | None:
    rank = dist.get_rank()
    assert members(None, rank) == list(range(dist.get_world_size()))
    if rank in victims:
        die()
    with pytest.raises(dist.DistBackendError):
        dist.barrier()
    while r2ccl.torch.lost_ranks() != victims:
        time.sleep(0.01)
    group = dist.distributed_c10d.shrink_group(victims)
    assert group is dist.group.WORLD
    # Messages, too, meet anew.
    left = [one for one in range(4) if one not in victims]
    if len(left) > 1:
        number = torch.tensor([7.0])
        if dist.get_rank() == 0:
            dist.send(number, 1)
        elif dist.get_rank() == 1:
            dist.recv(number.zero_(), 0)
            assert number.item() == 7.0
    return members(group, rank)


@pytest.mark.parametrize("victims", [[0], [1, 3], [1, 2, 3]])
def test_those_who_are_left_go_on(victims: list[int]) -> None:
    outcomes = outcomes_of(4, default_group_without, victims)
    left = [rank for rank in range(4) if rank not in victims]
    for rank in left:
        assert outcomes[rank].error == ""
        assert outcomes[rank].value == left


def aborted_and_refused() -> list[int] | None:
    rank = dist.get_rank()
    group = dist.new_group([0, 1, 2])
    dist.all_reduce(torch.ones(1), group=group)
    meet("they are together")
    pending = None
    if rank == 2:
        # It takes no part, and hears of it.
        with pytest.raises(dist.DistBackendError, match="abort"):
            dist.barrier(group=group)
        return None
    if rank == 0:
        pending = dist.barrier(group=group, async_op=True)
    backend = group._get_backend(torch.device("cpu"))
    assert backend.supports_shrinking
    for excluded, why in ([rank], "cannot exclude itself"), ([3], "not all ranks of a group of 3"):
        with pytest.raises(ValueError, match=why):
            backend.shrink(excluded, 0)
    with pytest.raises(ValueError, match="flags are 2"):
        backend.shrink([2], 2)
    left = dist.distributed_c10d.shrink_group(
        [2], group, shrink_flags=dist.distributed_c10d.SHRINK_ABORT
    )
    if pending is not None:
        with pytest.raises(dist.DistBackendError):
            pending.wait()
    return members(left, rank)


def test_what_is_going_on_is_aborted() -> None:
    assert run_world(3, aborted_and_refused) == [[0, 1], [0, 1], None]
