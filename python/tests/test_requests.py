"""Operations in the background, groups, and who keeps their buffers."""

from __future__ import annotations

import array
import ctypes
import gc
import os
import select
import sys
import threading
import weakref
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

import numpy as np
import pytest
import worlds

import r2ccl


class Watched(np.ndarray):  # type: ignore[type-arg]
    """An array whose end can be noticed."""


def watched(count: int) -> Watched:
    return np.zeros(count, np.int64).view(Watched)


def overlapping(communicator: r2ccl.Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    arrays = [np.full(1000, rank + number, np.int64) for number in range(20)]
    requests = [communicator.all_reduce(array, async_op=True) for array in arrays]
    requests[-1].wait(timeout=worlds.TIMEOUT)
    # They run in the order in which they were started.
    assert all(request.test() for request in requests)
    for number, result in enumerate(arrays):
        assert (result == size * number + size * (size - 1) // 2).all()
        requests[number].wait()
    barrier = communicator.barrier(async_op=True)
    barrier.wait()
    assert barrier.test()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_operations_run_in_the_background(size: int) -> None:
    worlds.run(overlapping, size)


def late_sender(communicator: r2ccl.Communicator, ready: Event) -> None:
    if communicator.rank == 1:
        assert ready.wait(worlds.TIMEOUT)
        communicator.send(np.arange(8), 0)
        communicator.barrier()
        return
    result = np.zeros(8, np.int64)
    request = communicator.recv(result, 1, async_op=True)
    assert not request.test()
    with pytest.raises(TimeoutError, match="not done after 0.01 s"):
        request.wait(timeout=0.01)
    with pytest.raises(TimeoutError):
        request.wait(timeout=0)
    with pytest.raises(r2ccl.InvalidArgumentError, match="timeout"):
        request.wait(timeout=-1)
    ready.set()
    request.wait()
    assert request.test()
    assert (result == np.arange(8)).all()
    communicator.barrier()


def test_a_wait_has_an_end() -> None:
    worlds.run(late_sender, 2, worlds.CONTEXT.Event())


def dropped_buffers(communicator: r2ccl.Communicator, ready: Event) -> None:
    if communicator.rank == 1:
        assert ready.wait(worlds.TIMEOUT)
        communicator.send(np.arange(1 << 16), 0)
        communicator.send(np.arange(1 << 16), 0)
        communicator.barrier()
        communicator.barrier()
        return
    result = watched(1 << 16)
    lives = weakref.ref(result)
    request = communicator.recv(result, 1, async_op=True)
    abandoned = watched(1 << 16)
    orphan_lives = weakref.ref(abandoned)
    communicator.recv(abandoned, 1, async_op=True)
    del result, abandoned
    gc.collect()
    assert lives() is not None, "the library is going to write there"
    assert orphan_lives() is not None, "also without a request"
    ready.set()
    request.wait()
    assert lives() is None, "a request that is done keeps nothing"
    communicator.barrier()
    communicator.barrier()
    assert orphan_lives() is None, "what is done without a request is given back"


def test_buffers_live_as_long_as_their_operation() -> None:
    worlds.run(dropped_buffers, 2, worlds.CONTEXT.Event())


def asked_again_while_given_back(communicator: r2ccl.Communicator) -> None:
    buffer = watched(8)
    request = communicator.all_reduce(buffer, async_op=True)
    answers: list[bool] = []
    weakref.finalize(buffer, lambda: answers.append(request.test()))
    del buffer
    request.wait()
    assert answers == [True]


def test_the_end_of_a_buffer_may_ask_its_request() -> None:
    worlds.run(asked_again_while_given_back, 1)


def locked_sizes(communicator: r2ccl.Communicator, ready: Event) -> None:
    if communicator.rank == 1:
        assert ready.wait(worlds.TIMEOUT)
        communicator.send(bytes(range(16)), 0)
        communicator.send(array.array("d", [1.5, 2.5]), 0)
        return
    letters, numbers = bytearray(16), array.array("d", [0.0, 0.0])
    requests = [communicator.recv(one, 1, async_op=True) for one in (letters, numbers)]
    for buffer in (letters, numbers):
        with pytest.raises(BufferError):
            buffer.extend(buffer)
    ready.set()
    for request in requests:
        request.wait()
    assert letters == bytes(range(16))
    assert list(numbers) == [1.5, 2.5]
    letters.extend(letters)
    numbers.extend(numbers)


def test_buffers_cannot_move_during_an_operation() -> None:
    worlds.run(locked_sizes, 2, worlds.CONTEXT.Event())


def dropped_communicator(communicator: r2ccl.Communicator) -> str:
    part = communicator.split(0)
    assert part is not None
    buffer = np.zeros(4)
    if communicator.rank == 0:
        request = part.recv(buffer, 1, async_op=True)
        del part
        gc.collect()
        with pytest.raises(r2ccl.AbortedError) as caught:
            request.wait()
    else:
        # The news may be here before the operation has begun.
        with pytest.raises(r2ccl.AbortedError) as caught:
            part.recv(buffer, 0, async_op=True).wait()
    communicator.barrier()
    return f"{caught.value.rank}: {caught.value.reason}"


def test_a_dropped_communicator_ends_its_operations() -> None:
    expected = "0: it was dropped while operations went on"
    assert worlds.run(dropped_communicator, 2) == [expected, expected]


def grouped(communicator: r2ccl.Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    received = np.zeros((size, 3), np.int32)
    total = np.ones(4)
    with r2ccl.Group():
        for peer in range(size):
            assert communicator.send(np.full(3, 10 * rank + peer, np.int32), peer) is None
            communicator.recv(received[peer], peer)
        with r2ccl.Group():
            communicator.all_reduce(total)
        assert (total == 1).all(), "nothing runs before the outermost end"
        with pytest.raises(r2ccl.InvalidUsageError, match="inside a group"):
            communicator.barrier(async_op=True)
    assert (received == 10 * np.arange(size)[:, None] + rank).all()
    assert (total == size).all()

    with r2ccl.Group(async_op=True) as group:
        communicator.all_reduce(total)
        assert group.request is None
    assert group.request is not None
    group.request.wait()
    assert (total == size * size).all()


def broken_groups(communicator: r2ccl.Communicator) -> None:
    total = np.ones(4)
    with pytest.raises(KeyError, match="gone"), r2ccl.Group():
        communicator.all_reduce(total)
        raise KeyError("gone")
    with pytest.raises(r2ccl.InvalidArgumentError), r2ccl.Group():
        communicator.all_reduce(total)
        communicator.send(total, 7)
    assert (total == 1).all(), "nothing of such a group runs"
    with r2ccl.Group():
        pass
    communicator.barrier()


@pytest.mark.parametrize("size", [1, 3])
def test_groups_start_together(size: int) -> None:
    worlds.run(grouped, size)


def test_a_group_that_raises_runs_nothing() -> None:
    worlds.run(broken_groups, 2)


def test_one_thread_serves_two_ranks_in_a_group() -> None:
    unique_id = r2ccl.UniqueId()
    made: dict[int, r2ccl.Communicator] = {}

    def create(rank: int) -> None:
        made[rank] = r2ccl.Communicator(unique_id, rank, 2, timeout=worlds.TIMEOUT)

    thread = threading.Thread(target=create, args=(1,))
    thread.start()
    create(0)
    thread.join(worlds.DEADLINE)
    arrays = [np.full(100, rank) for rank in range(2)]
    with made[0], made[1]:
        with r2ccl.Group():
            for rank in range(2):
                made[rank].all_reduce(arrays[rank])
        assert all((array == 1).all() for array in arrays)
        # Both ends take leave of each other, so neither can go first.
        thread = threading.Thread(target=made[1].finalize)
        thread.start()
        made[0].finalize()
        thread.join(worlds.DEADLINE)
        made[0].destroy()
        made[1].destroy()


def busy_thread(communicator: r2ccl.Communicator, ready: Event) -> None:
    if communicator.rank == 1:
        assert ready.wait(worlds.TIMEOUT)
        communicator.barrier()
        return
    entered = threading.Event()

    def let_the_other_come() -> None:
        assert entered.wait(worlds.TIMEOUT)
        ready.set()

    thread = threading.Thread(target=let_the_other_come)
    thread.start()
    # From here on the interpreter changes threads only where this one lets go of it.
    sys.setswitchinterval(1000)
    entered.set()
    communicator.barrier()
    thread.join(worlds.TIMEOUT)


def test_other_threads_run_during_a_call() -> None:
    worlds.run(busy_thread, 2, worlds.CONTEXT.Event())


class Poll(ctypes.Structure):
    """`struct pollfd`."""

    _fields_ = (
        ("fd", ctypes.c_int),
        ("events", ctypes.c_short),
        ("revents", ctypes.c_short),
    )


def call_beside_a_busy_thread(
    communicator: r2ccl.Communicator, begun: Event, done: Connection, tell: Connection
) -> None:
    # More than fits on the way, so that the sender has to go on while it is received.
    data = np.zeros(1 << 26, np.uint8)
    if communicator.rank == 1:
        assert begun.wait(worlds.TIMEOUT)
        # So late that the sender has looked for signals, if it does.
        threading.Event().wait(0.3)
        communicator.recv(data, 0)
        tell.send_bytes(b"received")
        return
    entered = threading.Event()

    def send() -> None:
        entered.set()
        communicator.send(data, 1)

    thread = threading.Thread(target=send)
    # The interpreter comes back to this thread when the other one lets go of it: in its call.
    sys.setswitchinterval(1000)
    thread.start()
    assert entered.wait(worlds.TIMEOUT)
    begun.set()
    question = Poll(done.fileno(), select.POLLIN, 0)
    # Unlike other foreign functions it is called with the interpreter.
    answers = ctypes.PyDLL(None).poll(ctypes.byref(question), 1, 60_000)
    assert answers == 1, "the call has waited for the interpreter"
    thread.join(worlds.TIMEOUT)


def test_a_call_goes_on_while_the_main_thread_has_the_interpreter() -> None:
    done, tell = worlds.CONTEXT.Pipe(duplex=False)
    with done, tell:
        worlds.run(call_beside_a_busy_thread, 2, worlds.CONTEXT.Event(), done, tell, apart=True)


def calls_of_threads(communicator: r2ccl.Communicator) -> None:
    # Not the main thread: it does the work itself.
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            for number in range(50):
                data = np.full(number, communicator.rank, np.float32)
                communicator.all_reduce(data)
                assert (data == 1).all()
            with pytest.raises(r2ccl.InvalidArgumentError):
                communicator.send(b"", 9)
        except BaseException as error:  # noqa: BLE001 for the main thread
            failures.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join(worlds.TIMEOUT)
    assert not thread.is_alive()
    assert not failures, failures


def test_any_thread_may_call() -> None:
    worlds.run(calls_of_threads, 2)


def test_a_forked_child_is_refused() -> None:
    with worlds.alone() as communicator:
        request = communicator.barrier(async_op=True)
        child = os.fork()
        if child == 0:
            os._exit(refused_in_child(communicator, request))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        request.wait()
        communicator.barrier()


def refused_in_child(communicator: r2ccl.Communicator, request: r2ccl.Request) -> int:
    """0 if everything that belongs to the parent is refused. Never raises: this is a forked test."""
    for call in (communicator.barrier, communicator.health, request.wait, request.test):
        try:
            call()
        except r2ccl.InvalidUsageError as error:
            if "fork" not in str(error):
                return 2
        except BaseException:  # noqa: BLE001 the exit status tells
            return 3
        else:
            return 1
    communicator.destroy()
    del communicator, request
    gc.collect()
    return 0
