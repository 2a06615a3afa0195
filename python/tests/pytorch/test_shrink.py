"""Groups that go on without ranks that are lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from worlds import die, meet, outcomes_of, run_world

import r2ccl.torch

SHRINK_DEFAULT = 0
SHRINK_ABORT = 1
IMPATIENT = {"R2CCL_BOOTSTRAP_TIMEOUT": "5"}
GOES_ON = "which is excluded, goes on, too"


def members(group: dist.ProcessGroup | None, name: int) -> list[int]:
    """The names of all ranks of a group, which works."""
    own = torch.tensor([name])
    gathered = [torch.zeros_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, own, group=group)
    return [int(one) for one in gathered]


def known_as_lost(ranks: list[int]) -> None:
    while r2ccl.torch.lost_ranks() != ranks:
        time.sleep(0.01)


def some_die(*victims: int) -> int:
    """Returns on those who are left when they know it: their rank."""
    rank = dist.get_rank()
    assert members(None, rank) == list(range(dist.get_world_size()))
    if rank in victims:
        die()
    with pytest.raises(dist.DistBackendError):
        dist.barrier()
    known_as_lost(list(victims))
    return rank


def default_group_without(victims: list[int]) -> list[int] | None:
    rank = some_die(*victims)
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


def shrunk_at_last(flags: int, given_up: tuple[int, ...] = ()) -> list[str]:
    """Makes a default group of those who are left; what went wrong before."""
    errors: list[str] = []
    while len(errors) < 5:
        lost = sorted({*given_up, *r2ccl.torch.lost_ranks()})
        try:
            dist.distributed_c10d.shrink_group(lost, shrink_flags=flags)
            break
        except dist.DistBackendError as error:
            errors.append(str(error))
    return errors


def nobody_hears_of_the_second(flags: int) -> tuple[list[str], list[int]]:
    rank = some_die(0)
    meet("three know of one", 3)
    if rank == 3:
        die()
    errors = shrunk_at_last(flags)
    return errors, members(None, rank)


@pytest.mark.parametrize("flags", [SHRINK_DEFAULT, SHRINK_ABORT])
def test_who_does_not_come_is_lost_too(flags: int) -> None:
    outcomes = outcomes_of(4, nobody_hears_of_the_second, flags, environment=IMPATIENT, seconds=60.0)
    for rank in (1, 2):
        assert outcomes[rank].error == ""
        errors, left = outcomes[rank].value
        assert left == [1, 2]
        # To whoever comes second the first one, which has aborted, may be lost.
        errors = [one for one in errors if GOES_ON not in one]
        assert len(errors) == 1
        assert "of 3 ranks have come within 5000 ms to go on without rank 0" in errors[0]
        assert "in vain was waited for rank 3" in errors[0]


def one_sleeps(lists_differ: bool) -> tuple[list[str], list[int]] | None:
    rank = some_die(3)
    store = dist.distributed_c10d._get_default_store()
    meet("three know of one", 3)
    if rank == 2:
        store.wait(["they have gone on"])
        # The others are gone from the group, and alone it should not go on either.
        for excluded in [3], [0, 1, 3]:
            with pytest.raises(dist.DistBackendError, match="this rank 2 is lost"):
                dist.distributed_c10d.shrink_group(excluded)
        return None
    errors = shrunk_at_last(SHRINK_ABORT, (2,) if lists_differ and rank == 1 else ())
    left = members(None, rank)
    store.set("they have gone on", "1")
    return errors, left


@pytest.mark.parametrize("lists_differ", [False, True])
def test_those_who_abort_and_wait_in_vain_are_not_lost(lists_differ: bool) -> None:
    outcomes = outcomes_of(4, one_sleeps, lists_differ, environment=IMPATIENT, seconds=60.0)
    assert outcomes[2].error == ""
    for rank in (0, 1):
        assert outcomes[rank].error == ""
        errors, left = outcomes[rank].value
        assert left == [0, 1]
        errors = [one for one in errors if GOES_ON not in one]
        # Whoever has excluded more may still be waiting when the other one comes again.
        assert len(errors) <= 1 and (errors or lists_differ)


def sees_an_abort() -> tuple[list[str], list[int]]:
    rank = some_die(2)
    meet("two know of one", 2)
    if rank == 1:
        # Rank 0 has aborted the group meanwhile.
        known_as_lost([0, 2])
    errors = shrunk_at_last(SHRINK_ABORT)
    return errors, members(None, rank)


def test_who_has_aborted_to_go_on_is_not_lost() -> None:
    outcomes = outcomes_of(3, sees_an_abort, seconds=60.0)
    assert [outcome.error for outcome in outcomes[:2]] == ["", ""]
    assert outcomes[0].value == ([], [0, 1])
    errors, left = outcomes[1].value
    assert left == [0, 1]
    assert len(errors) == 1
    assert f"rank 0, {GOES_ON}" in errors[0]


def await_state(process: int, state: str) -> None:
    """That of a process as the system names it; "" is that of one that has ended."""
    now: str | None = None
    while now != state:
        time.sleep(0.01)
        try:
            now = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0].strip("ZX")
        except FileNotFoundError:
            now = ""


def one_dies_while_it_waits() -> tuple[list[str], list[int]]:
    rank = some_die(0)
    store = dist.distributed_c10d._get_default_store()
    errors: list[str] = []
    if rank == 3:
        store.set("who dies", str(os.getpid()))
        signal.setitimer(signal.ITIMER_REAL, 2.0)
    elif rank == 2:
        await_state(int(store.get("who dies")), "")
        # It is counted among those who have come.
        with pytest.raises(dist.DistBackendError) as raised:
            dist.distributed_c10d.shrink_group([0])
        errors.append(str(raised.value))
    errors += shrunk_at_last(SHRINK_DEFAULT)
    return errors, members(None, rank)


def test_who_has_come_and_died_is_lost() -> None:
    outcomes = outcomes_of(4, one_dies_while_it_waits, environment=IMPATIENT, seconds=90.0)
    for rank in (1, 2):
        assert outcomes[rank].error == ""
        errors, left = outcomes[rank].value
        assert left == [1, 2]
        assert len(errors) == 1
        assert "of the new group, whose ranks have been 1, 2, 3" in errors[0]


def host_of_store_stops() -> list[int] | None:
    rank = dist.get_rank()
    world = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    if rank == 2:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        world.set("host", f"{store.port} {os.getpid()}")
        world.wait(["the others have met"])
        os.kill(os.getpid(), signal.SIGSTOP)
    port, host = map(int, world.get("host").split())
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("r2ccl", store=store, rank=rank, world_size=2)
    assert members(None, rank) == [0, 1]
    if rank == 1:
        world.set("the others have met", "1")
        await_state(host, "T")
        die()
    with pytest.raises(dist.DistBackendError):
        dist.barrier()
    known_as_lost([1])
    os.kill(host, signal.SIGKILL)
    return r2ccl.torch.lost_ranks()


def test_who_is_lost_is_told_without_the_store() -> None:
    outcome = outcomes_of(3, host_of_store_stops, seconds=60.0)[0]
    assert outcome.error == ""
    assert outcome.value == [1]


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


def ranks_and_devices() -> tuple[bool, bool, list[int]] | None:
    rank = dist.get_rank()
    group = dist.new_group([1, 2, 3])
    assert group is not None
    if rank < 2:
        return None
    devices = set(group._device_types)
    group = r2ccl.torch.shrink_group([0], group)
    same = set(group._device_types) == devices
    number = torch.tensor([rank])
    dist.broadcast(number, src=3, group=group)
    return same, number.item() == 3, dist.get_process_group_ranks(group)


def test_ranks_and_kinds_of_devices_are_those_of_the_group() -> None:
    assert run_world(4, ranks_and_devices) == [None, None, (True, True, [2, 3]), (True, True, [2, 3])]


def twice() -> list[int] | None:
    rank = dist.get_rank()
    for victim in ([0], [2]):
        if dist.get_rank() in victim:
            return None
        r2ccl.torch.shrink_group(victim)
        everybody = list(range(dist.get_world_size()))
        assert dist.get_process_group_ranks(dist.group.WORLD) == everybody
    dist.barrier(dist.new_group())
    return members(None, rank)


def test_the_default_group_shrinks_twice() -> None:
    outcomes = outcomes_of(4, twice)
    assert [outcome.value for outcome in outcomes] == [None, [1, 2], [1, 2], None]
