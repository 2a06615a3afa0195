"""Ctrl-C and other signals during calls that wait."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from types import FrameType

import numpy as np
import pytest
import worlds

import r2ccl


@contextlib.contextmanager
def signal_while_waiting(number: int) -> Iterator[None]:
    """This process gets a signal as soon as the body lets go of the interpreter, and not before.

    Until then no other thread runs, so neither does the one that sends the signal.
    """
    entered = threading.Event()

    def send() -> None:
        assert entered.wait(worlds.TIMEOUT)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        entered.set()
        yield
    finally:
        sys.setswitchinterval(interval)
        thread.join(worlds.TIMEOUT)


def interrupted_call(communicator: r2ccl.Communicator) -> str:
    if communicator.rank == 1:
        with pytest.raises(r2ccl.AbortedError) as caught:
            communicator.recv(np.zeros(16, np.int64), 0)
        assert caught.value.rank == 0
        return str(caught.value.reason)
    buffer = np.zeros(16, np.int64)
    with pytest.raises(KeyboardInterrupt), signal_while_waiting(signal.SIGINT):
        communicator.recv(buffer, 1)
    with pytest.raises(r2ccl.AbortedError):
        communicator.barrier()
    # The library has given the buffer back: it may be freed.
    buffer.resize(32)
    return str(communicator.async_error)


def test_ctrl_c_aborts_a_blocking_call() -> None:
    mine, theirs = worlds.run(interrupted_call, 2)
    assert theirs == "a signal interrupted a call"
    assert theirs in mine


def interrupted_turn(communicator: r2ccl.Communicator) -> None:
    first, second = np.zeros(16, np.int64), np.zeros(16, np.int64)
    peer = 1 - communicator.rank
    request = communicator.recv(first, peer, async_op=True)
    if communicator.rank == 0:
        # It waits for its turn, which never comes.
        with pytest.raises(KeyboardInterrupt), signal_while_waiting(signal.SIGINT):
            communicator.recv(second, peer)
        second.resize(32)
    with pytest.raises(r2ccl.AbortedError, match="a signal interrupted a call"):
        request.wait()


def test_ctrl_c_aborts_a_call_that_waits_for_others() -> None:
    worlds.run(interrupted_turn, 2)


def interrupted_wait(communicator: r2ccl.Communicator, handled: Event) -> None:
    if communicator.rank == 1:
        assert handled.wait(worlds.TIMEOUT)
        communicator.send(np.ones(16, np.int64), 0)
        return
    buffer = np.zeros(16, np.int64)
    request = communicator.recv(buffer, 1, async_op=True)
    with pytest.raises(KeyboardInterrupt), signal_while_waiting(signal.SIGINT):
        request.wait()
    assert not request.test()
    assert communicator.async_error is None
    handled.set()
    request.wait()
    assert (buffer == 1).all()


def test_ctrl_c_ends_a_wait_and_not_the_operation() -> None:
    worlds.run(interrupted_wait, 2, worlds.CONTEXT.Event())


def handled_signal(communicator: r2ccl.Communicator, handled: Event) -> None:
    if communicator.rank == 1:
        assert handled.wait(worlds.TIMEOUT)
        communicator.send(np.ones(16, np.int64), 0)
        return

    def handler(_number: int, _frame: FrameType | None) -> None:
        handled.set()

    signal.signal(signal.SIGUSR1, handler)
    buffer = np.zeros(16, np.int64)
    # Ends only if the handler runs during the call.
    with signal_while_waiting(signal.SIGUSR1):
        communicator.recv(buffer, 1)
    assert (buffer == 1).all()


def test_a_handler_that_does_not_raise_disturbs_nothing() -> None:
    worlds.run(handled_signal, 2, worlds.CONTEXT.Event())


@pytest.mark.parametrize("size", [1, 2])
def test_ctrl_c_ends_the_making_of_a_group(size: int) -> None:
    """Of one rank it takes less time than passes between two looks for signals; of two, the other one does not come."""
    unique_id = r2ccl.UniqueId()
    # Who starts the tests in the background may have turned the signal off.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), signal_while_waiting(signal.SIGINT):
            r2ccl.Communicator(unique_id, 0, size, timeout=worlds.TIMEOUT)
    finally:
        signal.signal(signal.SIGINT, before)
