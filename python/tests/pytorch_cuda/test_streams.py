"""Calls are in the order of streams, and the host waits for nothing."""

from __future__ import annotations

import torch
import torch.distributed as dist
from devices import Gate, bits, device, event_on, pinned, there
from worlds import run_world

COUNT = 5000


def total(rank_factor: float = 1.0) -> torch.Tensor:
    ranks = dist.get_world_size()
    return torch.full((COUNT,), rank_factor * ranks * (ranks + 1) / 2)


def own() -> torch.Tensor:
    return torch.full((COUNT,), float(dist.get_rank() + 1))


def a_call_behind_what_the_stream_does(stream: torch.cuda.Stream) -> None:
    gate, x, result = Gate(), there(torch.zeros(COUNT)), pinned(torch.zeros(COUNT))
    contribution = pinned(own())
    with torch.cuda.stream(stream):
        gate.hold()
        x.copy_(contribution, non_blocking=True)
        dist.all_reduce(x)
        result.copy_(x, non_blocking=True)
        end = event_on()
    # The call has returned, although its stream has not come to it.
    assert not end.query() and result[0] == 0.0
    gate.open()
    end.synchronize()
    assert torch.equal(result, total())


def synchronous() -> None:
    device()
    dist.all_reduce(there(own()))
    a_call_behind_what_the_stream_does(torch.cuda.Stream())
    a_call_behind_what_the_stream_does(torch.cuda.current_stream())


def test_a_call_comes_after_what_is_before_it_on_the_stream() -> None:
    run_world(2, synchronous)


def asynchronous() -> None:
    gate, x, result = Gate(), there(torch.zeros(COUNT)), pinned(torch.zeros(COUNT))
    contribution, stream = pinned(own()), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        gate.hold()
        x.copy_(contribution, non_blocking=True)
        work = dist.all_reduce(x, async_op=True)
        assert work is not None and not work.is_completed()
        # The host waits for nothing here.
        work.wait()
        assert not work.is_completed()
        result.copy_(x, non_blocking=True)
        end = event_on()
    assert not end.query()
    gate.open()
    end.synchronize()
    assert torch.equal(result, total())
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert bits(work.result()[0]) == bits(total())


def test_asynchronous_calls() -> None:
    run_world(2, asynchronous)


def the_stream_goes_on() -> None:
    """Whoever has started a call does not wait for those who come late."""
    store = dist.distributed_c10d._get_default_store()
    x = there(own())
    dist.all_reduce(there(own()))
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        event_on().synchronize()
        assert work is not None and not work.is_completed()
        store.set("went on", "1")
    else:
        store.wait(["went on"])
        work = dist.all_reduce(x, async_op=True)
    assert work is not None
    work.wait()
    assert bits(x) == bits(total())


def test_the_stream_of_the_caller_goes_on_meanwhile() -> None:
    run_world(2, the_stream_goes_on)


def memory_is_kept() -> None:
    store = dist.distributed_c10d._get_default_store()
    dist.all_reduce(there(own()))
    if dist.get_rank() == 0:
        for kind in ("kept by the work", "by the allocator"):
            x = there(own())
            address = x.data_ptr()
            work = dist.all_reduce(x, async_op=True)
            del x
            if kind == "by the allocator":
                del work
            # What the program allocates now must not be what the call works on.
            others = [torch.empty(COUNT, device="cuda:0") for _ in range(4)]
            assert address not in [other.data_ptr() for other in others], kind
            store.set(kind, "1")
            if kind == "kept by the work":
                work.wait()
                assert bits(work.result()[0]) == bits(total())
    else:
        for kind in ("kept by the work", "by the allocator"):
            store.wait([kind])
            x = there(own())
            dist.all_reduce(x)
            assert bits(x) == bits(total()), kind


def test_memory_is_kept_until_the_call_is_over() -> None:
    run_world(2, memory_is_kept)


def futures() -> None:
    gate, x, result = Gate(), there(torch.zeros(COUNT)), pinned(torch.zeros(COUNT))
    contribution, stream = pinned(own()), torch.cuda.Stream()

    def read(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        # On a stream that comes after the call.
        assert torch.cuda.current_stream() != stream
        result.copy_(future.value()[0], non_blocking=True)
        return future.value()[0]

    with torch.cuda.stream(stream):
        gate.hold()
        x.copy_(contribution, non_blocking=True)
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        followed = work.get_future().then(read)
        assert not work.is_completed()
        followed.wait()
        end = event_on()
    assert not end.query()
    gate.open()
    end.synchronize()
    assert torch.equal(result, total())


def test_what_follows_a_future_is_in_the_order_of_streams() -> None:
    run_world(2, futures)


def barriers() -> None:
    store = dist.distributed_c10d._get_default_store()
    dist.all_reduce(there(own()))
    gate = Gate()
    if dist.get_rank() == 0:
        gate.hold()
        work = dist.barrier(async_op=True)
        assert work is not None and not work.is_completed()
        store.set("not yet", "1")
        gate.open()
        work.wait()
    else:
        store.wait(["not yet"])
        work = dist.barrier(async_op=True)
        assert work is not None
        work.wait()
    # wait() of a barrier is of the host.
    assert work.is_completed()
    dist.barrier()


def test_a_barrier_waits_for_streams_and_the_host_for_it() -> None:
    run_world(2, barriers)


def several_streams() -> None:
    """Calls on different streams are done in the order in which they were made, on all ranks."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    tensors = [there(own() * factor) for factor in range(1, 31)]
    device()
    works = []
    for number, x in enumerate(tensors):
        with torch.cuda.stream(streams[number % 3]):
            works.append(dist.all_reduce(x, async_op=number % 2 == 0))
    for work in works:
        if work is not None:
            work.wait()
    for factor, x in enumerate(tensors, 1):
        assert bits(x) == bits(total(factor)), factor


def test_calls_on_several_streams() -> None:
    run_world(3, several_streams)


def host_and_device() -> None:
    """Neither waits for the other."""
    gate, x = Gate(), there(own())
    dist.all_reduce(there(own()))
    gate.hold()
    work = dist.all_reduce(x, async_op=True)
    y = own()
    dist.all_reduce(y)
    assert torch.equal(y, total())
    assert work is not None and not work.is_completed()
    gate.open()
    work.wait()
    assert bits(x) == bits(total())


def test_calls_on_the_host_do_not_wait_for_streams() -> None:
    run_world(2, host_and_device)


def message_behind_a_stream() -> None:
    rank = dist.get_rank()
    x, result, gate = there(torch.zeros(COUNT)), pinned(torch.zeros(COUNT)), Gate()
    first = there(torch.zeros(1))
    dist.send(first, 1) if rank == 0 else dist.recv(first, 0)
    contribution = pinned(own())
    gate.hold()
    if rank == 0:
        x.copy_(contribution, non_blocking=True)
        work = dist.isend(x, 1)
    else:
        work = dist.irecv(x, 0)
    assert work is not None
    work.wait()
    result.copy_(x, non_blocking=True)
    end = event_on()
    assert not end.query()
    gate.open()
    end.synchronize()
    assert torch.equal(result, torch.full((COUNT,), 1.0))


def test_messages_are_in_the_order_of_streams() -> None:
    run_world(2, message_behind_a_stream)
