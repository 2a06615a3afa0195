"""What goes wrong is an exception that says why, and streams go on."""

from __future__ import annotations

import ctypes
import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from devices import Gate, bits, break_down, device, there
from torch._C._distributed_c10d import ErrorType
from worlds import await_end_of_threads, die, meet, outcomes_of, run_world

import r2ccl.torch

NEVER_FREED: list[torch.Tensor] = []


def ones(count: int = 1000) -> torch.Tensor:
    return there(torch.ones(count))


def begun() -> None:
    """Returns when the group has made calls and no rank is in one any more."""
    dist.all_reduce(ones())
    dist.barrier()
    meet("begun")


def failure_of_next_call() -> str:
    with pytest.raises(dist.DistBackendError) as caught:
        call_until_failure()
    return str(caught.value)


def call_until_failure() -> None:
    for _ in range(100_000):
        dist.all_reduce(ones(1))


def one_dies() -> str:
    begun()
    if dist.get_rank() == 1:
        # A call that begins when the death is known already raises itself; that is the one after this.
        meet("called")
        die()
    work = dist.all_reduce(ones(), async_op=True)
    assert work is not None
    meet("called")
    # The stream goes on, whatever has become of the call.
    torch.cuda.synchronize()
    assert work.is_completed() and not work.is_success() and work.exception() is not None
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        work.wait()
    with pytest.raises(RuntimeError, match="rank 1"):
        work.get_future().wait()
    return failure_of_next_call()


def test_the_death_of_a_rank_is_an_exception_that_names_it() -> None:
    outcomes = outcomes_of(3, one_dies)
    assert outcomes[1].exit_code == -9
    for rank in (0, 2):
        assert outcomes[rank].error == "" and "rank 1" in outcomes[rank].value


def rails_of_calls_on_devices_die() -> tuple[list[int], float]:
    rank = dist.get_rank()
    os.environ["R2CCL_HOST_ID"] = f"host of rank {rank}"
    group = dist.new_group()
    assert group is not None and r2ccl.torch.lost_ranks(group) == []
    # Of the communicator that the first call on a device makes.
    os.environ["R2CCL_FAULT"] = "silent:host=0,rail=0,at=2s"
    with pytest.raises(dist.DistBackendError):
        for _ in range(100_000):
            dist.all_reduce(ones(1), group=group)
    lost = r2ccl.torch.lost_ranks(group)
    meet("they know")
    number = torch.ones(1)
    dist.all_reduce(number, group=group)
    return lost, number.item()


def test_who_is_lost_to_calls_on_devices_is_told() -> None:
    environment = {"R2CCL_RAILS": "127.0.0.2", "R2CCL_RAIL_PATIENCE": "0.5"}
    outcomes = run_world(2, rails_of_calls_on_devices_die, environment=environment, seconds=90.0)
    assert outcomes == [([1], 2.0), ([0], 2.0)]


def one_does_not_come() -> str:
    dist.all_reduce(ones())
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["late"])
        return ""
    work = dist.all_reduce(ones(), async_op=True)
    assert work is not None
    torch.cuda.synchronize()
    try:
        work.wait()
        message = "nothing"
    except dist.DistBackendError as error:
        message = str(error)
    store.set("late", "1")
    return message


def test_a_rank_that_does_not_come_is_named_after_the_timeout() -> None:
    message = outcomes_of(2, one_does_not_come, timeout=15.0)[0].value
    assert "rank 1" in message and "all_reduce" in message, message


def ones_after_a_message() -> torch.Tensor:
    """Of this rank, one of two, in a group that has communicators for collectives and for messages."""
    begun()
    x = ones()
    if dist.get_rank() == 0:
        dist.recv(x, 1)
    else:
        dist.send(x, 0)
    torch.cuda.synchronize()
    meet("connected")
    return x


def dropped_call(name: str) -> str:
    """What a call says after one that nobody holds has come to its end too late."""
    rank, x = dist.get_rank(), ones_after_a_message()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["noticed"])
        return ""
    dist.set_timeout(timedelta(seconds=1))
    if name == "all_reduce":
        dist.all_reduce(x)
    elif name == "recv":
        dist.recv(x, 1)
    else:
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1)]):
            work.wait()
        del work
    # Without that deadline the stream would wait for as long as the group was made to wait.
    torch.cuda.synchronize()
    message = failure_of_next_call()
    store.set("noticed", "1")
    return message


@pytest.mark.parametrize("name", ["all_reduce", "recv", "batch_isend_irecv"])
def test_a_deadline_is_kept_although_nobody_holds_the_work(name: str) -> None:
    assert "aborted" in run_world(2, dropped_call, name, seconds=60.0)[0]


def known_when_the_stream_goes_on() -> tuple[str, ErrorType]:
    # The other communicators are aborted after that of the call.
    rank, x = dist.get_rank(), ones_after_a_message()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["noticed"])
        return "", ErrorType.SUCCESS
    backend = dist.group.WORLD._get_backend(device())  # type: ignore[union-attr]
    dist.set_timeout(timedelta(seconds=1))
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    torch.cuda.synchronize()
    with pytest.raises(dist.DistBackendError) as caught:
        work.wait()
    error = backend.get_error()
    store.set("noticed", "1")
    return str(caught.value), error


def test_a_call_is_known_to_be_late_when_its_stream_goes_on() -> None:
    message, error = run_world(2, known_when_the_stream_goes_on, seconds=60.0)[0]
    assert "all_reduce did not finish within 1000 ms" in message
    assert error == ErrorType.TIMEOUT


def waiting_in_the_host() -> None:
    dist.all_reduce(ones())
    store = dist.distributed_c10d._get_default_store()
    x = ones()
    if dist.get_rank() == 1:
        store.wait(["timed out"])
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    if dist.get_rank() == 0:
        with pytest.raises(dist.DistBackendError, match="timeout"):
            work.wait(timedelta(milliseconds=300))
        store.set("timed out", "1")
    work.wait(timedelta(seconds=60))
    assert work.is_completed()
    assert bits(x) == bits(torch.full((1000,), 2.0))


def test_wait_with_a_timeout_is_of_the_host() -> None:
    run_world(2, waiting_in_the_host)


def different_calls() -> str:
    dist.all_reduce(ones())
    x = ones(6)
    with pytest.raises(dist.DistBackendError) as caught:
        # Where the device has already found out, the call says so, else its work.
        if dist.get_rank() == 0:
            work = dist.all_reduce(x, async_op=True)
        else:
            work = dist.broadcast(x, 0, async_op=True)
        assert work is not None
        torch.cuda.synchronize()
        work.wait()
    return str(caught.value)


def test_different_calls_are_both_named() -> None:
    for outcome in outcomes_of(2, different_calls):
        assert outcome.error == "", outcome.error
        assert "allreduce" in outcome.value and "broadcast" in outcome.value


def aborted() -> None:
    begun()
    gate, rank = Gate(), dist.get_rank()
    # The stream of rank 0 has not come to the call, that of rank 1 waits in it.
    if rank == 0:
        gate.hold()
    x = torch.empty(1000, device=device())
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    meet("called")
    backend = dist.group.WORLD._get_backend(device())  # type: ignore[union-attr]
    if rank == 0:
        backend.abort()
    else:
        while not work.is_completed():
            pass
    with pytest.raises(dist.DistBackendError, match="abort"):
        work.wait()
    gate.open()
    torch.cuda.synchronize()
    with pytest.raises(dist.DistBackendError, match="abort"):
        dist.all_reduce(x)


def test_an_abort_ends_calls_on_all_ranks() -> None:
    run_world(2, aborted)


def aborted_before_the_others_come() -> None:
    x, store = ones(), dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["aborted"])
        return
    keys = store.num_keys()
    backend = dist.group.WORLD._get_backend(device())  # type: ignore[union-attr]
    with ThreadPoolExecutor(1) as executor:
        call = executor.submit(dist.all_reduce, x)
        # Ranks of first calls meet through the store.
        while store.num_keys() == keys:
            time.sleep(0.01)
        backend.abort()
        with pytest.raises(dist.DistBackendError, match="aborted or destroyed"):
            call.result()
    store.set("aborted", "1")


def test_an_abort_ends_a_first_call_for_which_others_have_not_come() -> None:
    run_world(2, aborted_before_the_others_come, seconds=60.0)


def destroyed_with_a_call_under_way() -> None:
    begun()
    gate, x = Gate(), torch.empty(1000, device=device())
    gate.hold()
    work = dist.all_reduce(x, async_op=True)
    # With a warning of PyTorch, which goes to standard error here.
    dist.destroy_process_group()
    gate.open()
    torch.cuda.synchronize()
    assert work is not None and not work.is_success()


def test_a_group_can_be_destroyed_with_calls_under_way() -> None:
    run_world(2, destroyed_with_a_call_under_way, timeout=20.0)


def destroyed_on_a_broken_device() -> None:
    begun()
    gate, x = Gate(), torch.empty(1000, device=device())
    # PyTorch ends a process that gives memory of a device back that has failed.
    NEVER_FREED.append(x)
    gate.hold()
    dist.all_reduce(x, async_op=True)
    if dist.get_rank() == 0:
        break_down()
    gate.open()
    dist.destroy_process_group()
    await_end_of_threads()


def test_a_group_on_a_device_that_has_failed_can_be_destroyed() -> None:
    run_world(2, destroyed_on_a_broken_device, seconds=90.0)


def destroyed_at_once() -> None:
    """What is on streams is done before the group goes."""
    xs = [ones(40_000) for _ in range(4)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    dist.destroy_process_group()
    for x, work in zip(xs, works, strict=True):
        assert bits(x) == bits(torch.full((40_000,), 2.0))
        assert work is not None and work.is_success()
        work.wait()


def test_calls_under_way_are_done_before_a_group_is_destroyed() -> None:
    run_world(2, destroyed_at_once)


def impossible() -> None:
    size = dist.get_world_size()
    x = ones(4)
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        with pytest.raises(ValueError, match=f"{op.name}.*on a device".replace("RedOpType.", "")):
            dist.all_reduce(there(torch.ones(4, dtype=torch.int32)), op)
    with pytest.raises(ValueError, match="on cuda:0 and on cpu|on cpu and on cuda:0"):
        dist.all_gather_into_tensor(torch.empty(4 * size), x)
    with pytest.raises(ValueError, match="an output of 4 elements for an input of 400"):
        dist.all_to_all_single(x, ones(400))
    with pytest.raises(ValueError, match="splits of more than the 4 rows"):
        dist.all_to_all_single(x, ones(4), None, [4] * size)
    with pytest.raises(ValueError, match="no tags"):
        dist.isend(x, 1 - dist.get_rank(), tag=3)
    with pytest.raises(ValueError, match="no tags"):
        dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1 - dist.get_rank(), tag=3)])
    with pytest.raises(ValueError, match="a rank that is named"):
        dist.recv(x)
    with pytest.raises(ValueError, match="not on meta"):
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
        backend.allreduce([torch.empty(4, device="meta")])
    index = there(torch.zeros(1, 1, dtype=torch.int64))
    sparse = torch.sparse_coo_tensor(index, ones(1), (3,), check_invariants=False)
    with pytest.raises(ValueError, match="sparse tensors must be in the memory of the host"):
        dist.all_reduce(sparse)
    with pytest.raises(ValueError, match="tensors of the host and of a device"):
        with dist._coalescing_manager(device=x.device, async_ops=True):
            dist.broadcast(x, 0)
            dist.broadcast(torch.ones(4), 0)
    # Nothing of that has moved anything, and the group goes on.
    dist.all_reduce(x)
    assert bits(x) == bits(torch.full((4,), float(size)))


def ring_of_single_messages() -> str:
    rank, size = dist.get_rank(), dist.get_world_size()
    # The ranks of the default group may have begun at different times, and its timeout would be for that too.
    x = ones()
    meet("here")
    group = dist.new_group(timeout=timedelta(seconds=3))
    with pytest.raises(dist.DistBackendError) as caught:
        # Each waits for the next one, which waits for its own.
        dist.isend(x, (rank + 1) % size, group=group)
    return str(caught.value)


def test_single_messages_in_a_ring_are_told_of_batches() -> None:
    for rank, message in enumerate(run_world(3, ring_of_single_messages)):
        low, high = sorted((rank, (rank + 1) % 3))
        assert f"between ranks {low} and {high}" in message and "only 1 of 2 ranks" in message
        assert "batch_isend_irecv" in message


def test_what_is_impossible_is_a_value_error() -> None:
    run_world(2, impossible)


def splits_that_do_not_fit() -> None:
    rank = dist.get_rank()
    x = ones(50)
    # Rank 1 sends what rank 0 does not expect.
    sent, received = ([20, 30], [20, 10]) if rank == 0 else ([11, 39], [30, 39])
    with pytest.raises(dist.DistBackendError) as caught:
        # Where the device has already found out, this call says so, else one of those that follow.
        dist.all_to_all_single(ones(sum(received)), x, received, sent)
        call_until_failure()
    text = str(caught.value)
    assert "rank 0 called alltoallv(count=10 from rank 1" in text
    assert "rank 1 called alltoallv(count=11 to rank 0)" in text


def test_splits_that_do_not_fit_are_named() -> None:
    run_world(2, splits_that_do_not_fit)


def captured() -> None:
    x = ones(10)
    dist.all_reduce(x)
    # The other stream does not wait for this one.
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    runtime = ctypes.CDLL("libcudart.so.13")
    handle, graph = ctypes.c_void_p(stream.cuda_stream), ctypes.c_void_p()
    thread_local = 1
    with torch.cuda.stream(stream):
        for is_async in (False, True):
            assert runtime.cudaStreamBeginCapture(handle, thread_local) == 0
            with pytest.raises(dist.DistBackendError, match="cannot be captured into a graph"):
                dist.all_reduce(x, async_op=is_async)
            # No other stream has become part of it.
            assert runtime.cudaStreamEndCapture(handle, ctypes.byref(graph)) == 0
        if dist.get_rank() == 0:
            assert runtime.cudaStreamBeginCapture(handle, thread_local) == 0
            with pytest.raises(dist.DistBackendError, match="cannot be captured into a graph"):
                dist.barrier()
            assert runtime.cudaStreamEndCapture(handle, ctypes.byref(graph)) == 0
        dist.barrier()
        dist.all_reduce(x)
    assert bits(x) == bits(torch.full((10,), 4.0))
    # Nor has any half of the refused barrier begun.
    y = torch.ones(1)
    dist.all_reduce(y)
    assert y.item() == 2.0


def test_a_call_cannot_be_captured() -> None:
    run_world(2, captured)


def deadline_beside_a_capture() -> str:
    begun()
    if dist.get_rank() == 1:
        meet("noticed")
        return ""
    dist.set_timeout(timedelta(seconds=3))
    work = dist.all_reduce(ones(), async_op=True)
    assert work is not None
    runtime, every_thread = ctypes.CDLL("libcudart.so.13"), 0
    handle, graph = ctypes.c_void_p(torch.cuda.Stream().cuda_stream), ctypes.c_void_p()
    assert runtime.cudaStreamBeginCapture(handle, every_thread) == 0
    # Meanwhile the deadline is looked at.
    time.sleep(0.5)
    assert runtime.cudaStreamEndCapture(handle, ctypes.byref(graph)) == 0
    while not work.is_completed():
        time.sleep(0.01)
    meet("noticed")
    return str(work.exception())


def test_a_deadline_is_watched_beside_a_capture() -> None:
    message = run_world(2, deadline_beside_a_capture, seconds=90.0)[0]
    assert "all_reduce did not finish within 3000 ms" in message, message


def without_the_feature() -> None:
    x = torch.empty(4, device=device())
    with pytest.raises(dist.DistBackendError, match="built without CUDA.*--features cuda"):
        dist.all_reduce(x)
    y = torch.ones(4)
    dist.all_reduce(y)
    assert torch.equal(y, torch.full((4,), 2.0))


def test_a_library_without_the_feature_says_so() -> None:
    library = os.environ.get("CCL_TEST_LIBRARY_WITHOUT_CUDA")
    if library is None:
        pytest.skip("CCL_TEST_LIBRARY_WITHOUT_CUDA names no library")
    run_world(2, without_the_feature, environment={"R2CCL_LIBRARY": library})
