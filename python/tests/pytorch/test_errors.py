"""What goes wrong ends with an exception that names who is to blame, and never with a hang."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType
from worlds import GROUP_SECONDS, SECONDS, die, meet, outcomes_of, run_world

# A rank that comes so late is awaited by those whose deadline allows it.
LATE_SECONDS = 4.0


def refused(tensor: torch.Tensor) -> str:
    """The message of an all_reduce that must fail."""
    try:
        dist.all_reduce(tensor)
    except dist.DistBackendError as error:
        return str(error)
    return "nothing"


def error_of_group() -> ErrorType:
    assert dist.group.WORLD is not None
    return dist.group.WORLD._get_backend(torch.device("cpu")).get_error()


def begun() -> None:
    """Returns when the group has made a call and no rank is in it any more."""
    dist.barrier()
    meet("begun")


def one_dies(count: int) -> str:
    begun()
    if dist.get_rank() == 1:
        die()
    message = refused(torch.ones(count))
    assert refused(torch.ones(1)) != "nothing"
    assert error_of_group() == ErrorType.REMOTE_ERROR
    return message


def test_the_death_of_a_rank_is_an_exception_that_names_it_on_all_others() -> None:
    for count in (1, 1_000_000):
        outcomes = outcomes_of(3, one_dies, count)
        assert outcomes[1].exit_code == -9
        for rank in (0, 2):
            assert outcomes[rank].error == ""
            assert "rank 1" in outcomes[rank].value


def impossible_setting() -> str:
    os.environ["R2CCL_RAIL_HOLD"] = "for ever"
    try:
        dist.all_reduce(torch.ones(1), group=dist.new_group(backend="r2ccl"))
        return "nothing"
    except (RuntimeError, ValueError) as error:
        return str(error)


def test_an_impossible_setting_is_an_error_on_all_ranks() -> None:
    for message in run_world(3, impossible_setting):
        assert "R2CCL_RAIL_HOLD" in message and "for ever" in message


def one_dies_while_others_wait() -> str:
    begun()
    if dist.get_rank() == 1:
        die()
    work = dist.all_reduce(torch.ones(1_000_000), async_op=True)
    future = work.get_future()
    try:
        work.wait()
        return "nothing"
    except dist.DistBackendError as error:
        assert work.is_completed() and not work.is_success()
        try:
            future.wait()
            return "the future knows nothing"
        except RuntimeError:
            return str(error)


def test_started_work_and_its_future_end_when_a_rank_dies() -> None:
    outcomes = outcomes_of(3, one_dies_while_others_wait)
    for rank in (0, 2):
        assert "rank 1" in outcomes[rank].value


def different_calls() -> str:
    return refused(torch.ones(10 + dist.get_rank()))


def test_different_calls_are_an_exception_that_names_both() -> None:
    for message in run_world(2, different_calls):
        assert "count=10" in message and "count=11" in message


def one_dies_before_its_message() -> str:
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), 0)
        die()
    dist.send(torch.zeros(1), 1)
    try:
        dist.recv(torch.zeros(1), 1)
    except dist.DistBackendError as error:
        return str(error)
    return "nothing"


def test_a_message_from_the_dead_is_an_exception() -> None:
    assert "receive from rank 1" in outcomes_of(2, one_dies_before_its_message)[0].value


def one_dies_before_any_message() -> str:
    if dist.get_rank() == 1:
        die()
    try:
        dist.recv(torch.zeros(1), 1)
    except dist.DistBackendError as error:
        return str(error)
    return "nothing"


def test_a_first_message_from_the_dead_is_an_exception() -> None:
    assert "rank 1" in outcomes_of(2, one_dies_before_any_message)[0].value


def one_sleeps() -> str:
    store = dist.distributed_c10d._get_default_store()
    dist.set_timeout(timedelta(seconds=2))
    if dist.get_rank() == 1:
        store.wait(["noticed"], timedelta(seconds=SECONDS))
        return ""
    began = time.monotonic()
    message = refused(torch.ones(1))
    store.set("noticed", "yes")
    assert time.monotonic() - began >= 2.0
    assert error_of_group() == ErrorType.TIMEOUT
    return message


def test_a_rank_that_does_not_come_is_a_timeout() -> None:
    message = run_world(2, one_sleeps)[0]
    assert "all_reduce did not finish within 2000 ms" in message and " timeout " in message


def one_sleeps_from_the_start() -> str:
    store = dist.distributed_c10d._get_default_store()
    # The ranks of the default group may have begun at different times, and its timeout would be for that too.
    meet("here")
    group = dist.new_group(timeout=timedelta(seconds=8))
    if dist.get_rank() == 1:
        store.wait(["noticed"], timedelta(seconds=SECONDS))
        return ""
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(torch.ones(1), group=group)
    store.set("noticed", "yes")
    return str(caught.value)


def test_the_timeout_of_a_group_names_whom_it_waited_for() -> None:
    message = run_world(2, one_sleeps_from_the_start)[0]
    assert "did not finish within 8.000 s" in message and "rank 1" in message
    assert " timeout " in message


def one_is_late() -> float:
    dist.set_timeout(timedelta(seconds=SECONDS))
    if dist.get_rank() == 1:
        time.sleep(LATE_SECONDS)
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def test_a_timeout_can_be_longer_than_that_of_the_group() -> None:
    assert run_world(2, one_is_late, timeout=LATE_SECONDS / 2) == [2.0, 2.0]


def one_raises() -> str:
    if dist.get_rank() == 0:
        raise ValueError("a bug in the training script")
    return refused(torch.ones(1))


def test_an_exception_on_one_rank_ends_the_others() -> None:
    outcomes = outcomes_of(3, one_raises)
    assert "a bug in the training script" in outcomes[0].error
    assert "rank 0" in outcomes[1].value and "rank 0" in outcomes[2].value


def destroyed_with_hopeless_work() -> None:
    store = dist.distributed_c10d._get_default_store()
    dist.set_timeout(timedelta(seconds=1))
    if dist.get_rank() == 1:
        store.wait(["gone"], timedelta(seconds=SECONDS))
        return
    works = [dist.all_reduce(torch.ones(10), async_op=True), dist.irecv(torch.ones(1), 1)]
    dist.destroy_process_group()
    store.set("gone", "yes")
    assert all(work.is_completed() and not work.is_success() for work in works)


def test_a_group_can_be_destroyed_while_its_work_is_hopeless() -> None:
    run_world(2, destroyed_with_hopeless_work)


def used_in_a_fork() -> str:
    size = dist.get_world_size()
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(1))
            message = "nothing"
        except RuntimeError as error:
            message = str(error)
        os.write(writable, message.encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as pipe:
        message = pipe.read()
    os.waitpid(child, 0)
    after = torch.ones(1)
    dist.all_reduce(after)
    assert after.item() == size
    return message


def test_a_forked_child_is_told_that_it_cannot_use_the_group() -> None:
    for message in run_world(2, used_in_a_fork):
        assert "forked" in message


def devices_that_are_not_there() -> list[str]:
    group = dist.new_group(backend="cuda:r2ccl")
    everybody: list[object] = [None] * dist.get_world_size()
    messages = []
    for wanted in (
        lambda: dist.all_reduce(torch.ones(4, device="cuda"), group=group),
        # The objects travel as tensors of a device.
        lambda: dist.all_gather_object(everybody, 1, group=group),
    ):
        try:
            wanted()
            messages.append("nothing")
        except RuntimeError as error:
            messages.append(str(error))
    after = torch.ones(1)
    dist.all_reduce(after)
    assert after.item() == dist.get_world_size()
    return messages


def test_without_a_driver_pytorch_says_so_and_the_group_goes_on() -> None:
    if torch.cuda.is_available() or not torch.backends.cuda.is_built():
        pytest.skip("there is a CUDA device, or a PyTorch without CUDA")
    for messages in run_world(2, devices_that_are_not_there):
        for message in messages:
            assert "No CUDA GPUs are available" in message or "NVIDIA driver" in message


def used_after_its_end(end: str) -> None:
    assert dist.group.WORLD is not None
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    other, x = 1 - dist.get_rank(), torch.ones(1)
    assert backend.get_error() == ErrorType.SUCCESS
    meet("here")
    getattr(backend, end)()
    assert (backend.get_error() == ErrorType.SUCCESS) == (end == "shutdown")
    calls = [
        backend.health,
        dist.barrier,
        dist.monitored_barrier,
        lambda: dist.split_group(split_ranks=[[0, 1]]),
        lambda: dist.all_reduce(x),
        lambda: dist.isend(x, other),
        lambda: dist.irecv(x, other),
    ]
    for call in calls:
        with pytest.raises(dist.DistBackendError, match="aborted or destroyed"):
            call()


@pytest.mark.parametrize("end", ["shutdown", "abort"])
def test_a_group_that_has_ended_says_so(end: str) -> None:
    run_world(2, used_after_its_end, end)


def is_overtaken(tensor: torch.Tensor) -> bool:
    """Whether an abort comes to a call before the library does."""
    group = dist.new_group()
    assert group is not None
    backend = group._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()

    def abort() -> None:
        while backend._get_sequence_number_for_group() == before:
            pass
        backend.abort()

    thread = threading.Thread(target=abort)
    thread.start()
    try:
        dist.all_reduce(tensor, group=group)
        return False
    except dist.DistBackendError as error:
        return "aborted or destroyed" in str(error)
    finally:
        thread.join()
        dist.destroy_process_group(group)


def aborted_while_a_tensor_is_copied() -> None:
    # Before the library is called it is made contiguous, which takes long, but a busy machine may not let the other thread run
    # meanwhile.
    tensor = torch.ones(6000, 6000).t()
    while not is_overtaken(tensor):
        pass


def test_a_call_that_an_abort_overtakes_says_that_the_group_has_ended() -> None:
    run_world(1, aborted_while_a_tensor_is_copied)


def end_of_a_monitored_barrier(aborts_at: int | None) -> str:
    """With which error it ends. This rank aborts its group when the store has so many keys: each leaves one when it comes."""
    assert dist.group.WORLD is not None
    store = dist.distributed_c10d._get_default_store()
    with ThreadPoolExecutor() as threads:
        barrier = threads.submit(dist.monitored_barrier, timeout=timedelta(seconds=SECONDS))
        if aborts_at is not None:
            while store.num_keys() < aborts_at:
                pass
            dist.group.WORLD._get_backend(torch.device("cpu")).abort()
        return str(barrier.exception(GROUP_SECONDS))


def aborted_in_a_monitored_barrier(who: int) -> str:
    assert dist.group.WORLD is not None
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    inside = {who, 1}
    meet("here")
    if rank == 2:
        store.set("keys", str(store.num_keys()))
    before = int(store.get("keys")) + 1
    if rank not in inside:
        store.wait(["told"])
        return "it does not come"
    error = end_of_a_monitored_barrier(before + len(inside) if rank == who else None)
    if rank == 1:
        store.set("told", "1")
    return error


@pytest.mark.parametrize("who", [0, 1])
def test_an_abort_ends_a_monitored_barrier(who: int) -> None:
    messages = run_world(3, aborted_in_a_monitored_barrier, who, seconds=60.0)
    assert "the process group was aborted or destroyed" in messages[who]
    assert "aborted or destroyed" in messages[1]


def gone_from_a_monitored_barrier(late: list[int]) -> str:
    """Rank 1 comes and aborts its group; those who are ``late`` come when the others have gone."""
    assert dist.group.WORLD is not None
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    meet("here")
    if rank == 2:
        store.set("keys", str(store.num_keys()))
    before = int(store.get("keys")) + 1
    punctual = [rank for rank in range(dist.get_world_size()) if rank not in late]
    if rank in late:
        store.wait([f"gone/{rank}" for rank in punctual])
    error = end_of_a_monitored_barrier(before + len(punctual) if rank == 1 else None)
    if rank in punctual:
        store.set(f"gone/{rank}", "1")
    return error


@pytest.mark.parametrize("late", [[2], [0, 2], [0]])
def test_who_aborts_in_a_monitored_barrier_is_named_to_the_others(late: list[int]) -> None:
    messages = run_world(3, gone_from_a_monitored_barrier, late, seconds=60.0)
    assert "the process group was aborted or destroyed" in messages[1]
    for rank in (0, 2):
        assert "rank 1 has aborted or destroyed the process group" in messages[rank]


def one_aborts() -> ErrorType:
    assert dist.group.WORLD is not None
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    meet("here")
    if dist.get_rank() == 1:
        while backend.get_error() == ErrorType.SUCCESS:
            pass
    backend.abort()
    return backend.get_error()


def test_a_group_tells_its_own_abort_from_that_of_another_rank() -> None:
    errors = run_world(2, one_aborts, seconds=60.0)
    assert errors == [ErrorType.COMM_ERROR, ErrorType.REMOTE_ERROR]
