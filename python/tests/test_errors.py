"""Exceptions: their classes, what they know, and that nobody waits for ever."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
import pytest
import worlds

import r2ccl
from r2ccl import InvalidArgumentError


class Lender:
    """A tensor on some device."""

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 3

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("nobody may look at it")


def read_only(values: Any) -> Any:
    values.flags.writeable = False
    return values


ARGUMENTS: list[tuple[Any, type[Exception], str]] = [
    (np.zeros(4, np.complex64), InvalidArgumentError, 'input.*format "Zf".*bfloat16'),
    (np.zeros(4, np.int16), InvalidArgumentError, 'format "h"'),
    (np.zeros(4, ">f4"), InvalidArgumentError, 'format ">f"'),
    (np.zeros(4, "datetime64[s]"), InvalidArgumentError, "does not lend its memory"),
    (np.zeros((4, 4))[:, 1], InvalidArgumentError, "not C-contiguous"),
    (np.zeros((4, 4)).T[:3], InvalidArgumentError, "not C-contiguous"),
    (memoryview(bytearray(8))[::2], InvalidArgumentError, "not C-contiguous"),
    (read_only(np.zeros(4)), InvalidArgumentError, "read-only"),
    (b"1234", InvalidArgumentError, "read-only"),
    ([1.0, 2.0], TypeError, "list, which has neither"),
    (None, TypeError, "NoneType"),
    (Lender(2), InvalidArgumentError, "nobody may look at it"),
    (Lender(10), InvalidArgumentError, "on device rocm:3"),
    (Lender(99), InvalidArgumentError, "on device DLPack kind 99:3"),
    (Lender(1), InvalidArgumentError, "nobody may look at it"),
]


@pytest.mark.parametrize(("buffer", "error", "text"), ARGUMENTS)
def test_unusable_buffers_are_explained(buffer: Any, error: type[Exception], text: str) -> None:
    with worlds.alone() as communicator:
        with pytest.raises(error, match=text):
            communicator.all_reduce(buffer)
        communicator.barrier()


def test_arguments_that_do_not_fit_are_named() -> None:
    with worlds.alone() as communicator:
        four, five = np.zeros(4), np.zeros(5)
        with pytest.raises(InvalidArgumentError, match="output has 5 elements, 4 are needed"):
            communicator.all_reduce(four, five)
        with pytest.raises(InvalidArgumentError, match="input has elements of float64.*int64"):
            communicator.all_reduce(four, np.zeros(4, np.int64))
        with pytest.raises(InvalidArgumentError, match="root 1 is not a rank of a group of 1"):
            communicator.broadcast(four, root=1)
        with pytest.raises(InvalidArgumentError, match="peer -1 is not a rank"):
            communicator.send(four, -1)
        with pytest.raises(InvalidArgumentError, match="input is None, but rank 0 needs it"):
            communicator.scatter(None, four)
        with pytest.raises(InvalidArgumentError, match="overlap"):
            communicator.all_reduce(five[:4], five[1:])
        with pytest.raises(InvalidArgumentError, match="exceeds the buffer"):
            communicator.all_to_all_v(four, five, [5], [5])
        with pytest.raises(InvalidArgumentError, match="2 send counts for 1 ranks"):
            communicator.all_to_all_v(four, five, [2, 2], [4])
        with pytest.raises(InvalidArgumentError, match="1 receive counts have 2 displacements"):
            communicator.all_to_all_v(four, five, [4], [4], [0], [0, 1])
        with pytest.raises(InvalidArgumentError, match="premul_sum.0.5. is not for int64"):
            communicator.all_reduce(np.zeros(4, np.int64), op=r2ccl.ReduceOp.premul_sum(0.5))
        with pytest.raises(InvalidArgumentError, match="premul_sum.300. is not for int8"):
            communicator.all_reduce(np.zeros(4, np.int8), op=r2ccl.ReduceOp.premul_sum(300))
        with pytest.raises(r2ccl.InvalidUsageError, match="sends messages"):
            communicator.send(four, 0)
        communicator.barrier()


def indivisible(communicator: r2ccl.Communicator) -> None:
    for call in (communicator.all_gather, communicator.reduce_scatter, communicator.all_to_all):
        with pytest.raises(InvalidArgumentError, match="3 elements.*among 2 ranks"):
            call(np.zeros(3))
    communicator.barrier()


def test_blocks_have_to_be_equal() -> None:
    worlds.run(indivisible, 2)


def test_an_error_knows_what_it_is_about() -> None:
    with worlds.alone() as communicator, pytest.raises(r2ccl.Error) as caught:
        communicator.send(b"", 5)
    error = caught.value
    assert isinstance(error, ValueError)
    assert error.code is r2ccl.ResultCode.INVALID_ARGUMENT
    assert (error.rank, error.rail) == (None, None)
    assert error.reason == "peer 5 is not a rank of a group of 1"
    assert error.remedy == "correct the call"
    assert str(error) == f"invalid argument: {error.reason}; {error.remedy}"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_a_destroyed_communicator_is_refused() -> None:
    with worlds.alone() as communicator:
        communicator.finalize()
        with pytest.raises(r2ccl.InvalidUsageError, match="finalized"):
            communicator.barrier()
        communicator.destroy()
        communicator.destroy()
        with pytest.raises(r2ccl.InvalidUsageError, match="destroyed"):
            communicator.barrier()


def test_impossible_groups_are_refused() -> None:
    unique_id = r2ccl.UniqueId()
    with pytest.raises(InvalidArgumentError, match="rank 2 is not a rank of a group of 2"):
        r2ccl.Communicator(unique_id, 2, 2)
    with pytest.raises(InvalidArgumentError, match="rank is -1"):
        r2ccl.Communicator(unique_id, -1, 2)
    with pytest.raises(InvalidArgumentError, match="timeout is NaN"):
        r2ccl.Communicator(unique_id, 0, 1, timeout=float("nan"))
    with pytest.raises(InvalidArgumentError, match="128 bytes, not 3"):
        r2ccl.UniqueId.from_bytes(b"abc")
    with pytest.raises(InvalidArgumentError, match="no unique id"):
        r2ccl.UniqueId.from_bytes(bytes(128))


def without_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets that this test may run under a launcher itself."""
    for name in list(os.environ):
        if name.startswith(("OMPI_", "PMI_", "SLURM_", "RANK", "WORLD_SIZE", "MPI_")):
            monkeypatch.delenv(name)


def test_without_a_launcher_there_is_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    without_launcher(monkeypatch)
    with pytest.raises(r2ccl.Error, match="RANK"):
        r2ccl.Communicator.from_environment()


def test_settings_of_the_environment_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2CCL_TIMEOUT", "soon")
    with pytest.raises(InvalidArgumentError, match="R2CCL_TIMEOUT"):
        r2ccl.UniqueId()


def disagreeing(communicator: r2ccl.Communicator) -> tuple[str, Any, Any]:
    rank = communicator.rank
    with pytest.raises(r2ccl.DisagreementError) as caught:
        communicator.all_reduce(np.zeros(100 + rank))
    assert isinstance(communicator.async_error, r2ccl.Error)
    with pytest.raises(r2ccl.Error):
        communicator.barrier()
    return str(caught.value), caught.value.rank, caught.value.noticed_by


class Speechless(Exception):
    def __repr__(self) -> str:
        raise ValueError("no words")


def speechless(communicator: r2ccl.Communicator) -> str:
    if communicator.rank == 0:
        with pytest.raises(Speechless), communicator:
            raise Speechless
        return ""
    with pytest.raises(r2ccl.AbortedError) as caught:
        communicator.barrier()
    return str(caught.value)


def test_an_exception_that_cannot_say_what_it_is_ends_the_others_too() -> None:
    assert "Speechless" in worlds.run(speechless, 2)[1]


@pytest.mark.parametrize("size", [2, 3])
def test_different_counts_are_a_disagreement(size: int) -> None:
    for text, rank, noticed_by in worlds.run(disagreeing, size):
        assert "count=100" in text or "count=101" in text
        assert {rank, noticed_by} <= set(range(size))


def killed(communicator: r2ccl.Communicator, async_op: bool) -> list[Any]:
    data = np.zeros(1 << 20)
    if communicator.rank == 1:
        communicator.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(r2ccl.PeerLostError) as caught:
        # The news may overtake the end of the barrier.
        communicator.barrier()
        if async_op:
            communicator.all_reduce(data, async_op=True).wait()
        else:
            communicator.all_reduce(data)
    error = caught.value
    return [error.rank, error.code, bool(error.reason), bool(error.remedy)]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("async_op", [False, True])
def test_a_killed_peer_is_named(size: int, async_op: bool) -> None:
    results = worlds.outcomes(killed, size, async_op)
    assert isinstance(results.pop(1), worlds.RankFailed)
    assert results == [[1, r2ccl.ResultCode.REMOTE_ERROR, True, True]] * (size - 1)


def shrunk(communicator: r2ccl.Communicator) -> list[Any]:
    if communicator.rank == 1:
        os._exit(0)
    with pytest.raises(r2ccl.PeerLostError) as caught:
        communicator.barrier()
    lost = caught.value.rank
    assert communicator.lost_ranks == [lost]
    for excluded in ([communicator.rank], [lost, lost], [-1], [3]):
        with pytest.raises(InvalidArgumentError):
            communicator.shrink(excluded)
    left = communicator.shrink([lost], name="left", timeout=100.0)
    ranks = np.zeros(left.size, np.int32)
    left.all_gather(np.array([communicator.rank], np.int32), ranks)
    again = left.shrink([], abort=True)
    # Its text has the name of the communicator, what programs compare has not.
    with pytest.raises(r2ccl.AbortedError, match='communicator "left"') as caught:
        left.barrier()
    assert caught.value.reason == "ranks go on in another communicator"
    again.barrier()
    return [left.rank, left.name, again.size, ranks.tolist()]


def test_those_who_are_left_go_on() -> None:
    results = worlds.outcomes(shrunk, 3)
    assert isinstance(results.pop(1), worlds.RankFailed)
    assert results == [[0, "left", 2, [0, 2]], [1, "left", 2, [0, 2]]]


def grown(communicator: r2ccl.Communicator) -> list[Any]:
    rank = communicator.rank
    old = communicator.split(0 if rank < 2 else None)
    invitation = np.zeros(128, np.uint8)
    if old is not None:
        for size in (-1, 2):
            with pytest.raises(InvalidArgumentError):
                old.grow(size)
        with pytest.raises(r2ccl.InvalidUsageError, match="no rank has asked for the id"):
            old.grow(3)
        if rank == 1:
            invitation[:] = list(bytes(old.growth_id()))
    communicator.broadcast(invitation, root=1)
    if old is not None:
        larger = old.grow(3, name="larger", timeout=100.0)
        old.barrier()
    else:
        unique_id = r2ccl.UniqueId.from_bytes(invitation.tobytes())
        larger = r2ccl.Communicator(unique_id, 2, 3, name="larger")
    ranks = np.zeros(larger.size, np.int32)
    larger.all_gather(np.array([rank], np.int32), ranks)
    return [larger.rank, larger.name, ranks.tolist()]


def test_new_ranks_join() -> None:
    assert worlds.run(grown, 3) == [[rank, "larger", [0, 1, 2]] for rank in range(3)]


def aborted(communicator: r2ccl.Communicator, inside: Event) -> Any:
    if communicator.rank == 0:
        assert inside.wait(worlds.TIMEOUT)
        communicator.abort("enough")
    else:
        inside.set()
    with pytest.raises(r2ccl.AbortedError, match="enough") as caught:
        communicator.barrier()
    return caught.value.rank


def test_an_abort_reaches_everybody() -> None:
    assert worlds.run(aborted, 3, worlds.CONTEXT.Event()) == [0, 0, 0]


def raising(communicator: r2ccl.Communicator) -> str:
    if communicator.rank == 0:
        with pytest.raises(KeyError), communicator:
            raise KeyError("the reason")
        return "raised"
    with pytest.raises(r2ccl.AbortedError) as caught:
        communicator.barrier()
    return str(caught.value.reason)


def test_the_others_hear_what_was_raised() -> None:
    assert worlds.run(raising, 2) == ["raised", "KeyError('the reason')"]


def overdue(communicator: r2ccl.Communicator, done: Event) -> None:
    part = communicator.split(0, timeout=0.2)
    assert part is not None
    if communicator.rank == 0:
        with pytest.raises(r2ccl.DeadlineError, match="did not finish within 0.2") as caught:
            part.barrier()
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.code is r2ccl.ResultCode.TIMEOUT
        assert "1" in str(caught.value.reason)
        done.set()
    else:
        assert done.wait(worlds.TIMEOUT)
    communicator.barrier()


def test_a_rank_that_does_not_come_is_a_deadline() -> None:
    worlds.run(overdue, 2, worlds.CONTEXT.Event())


def test_a_failing_call_of_a_thread_is_raised_there() -> None:
    caught: list[BaseException] = []

    def call() -> None:
        try:
            communicator.send(b"", 1)
        except r2ccl.Error as error:
            caught.append(error)

    with worlds.alone() as communicator:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join(worlds.DEADLINE)
    assert [type(error) for error in caught] == [InvalidArgumentError]


ALONE = "import r2ccl; r2ccl.Communicator(r2ccl.UniqueId(), 0, 1, timeout=60).finalize()"


def run_alone(**environment: str) -> subprocess.CompletedProcess[str]:
    """A process that makes a communicator for itself, with these variables."""
    command = [sys.executable, "-c", ALONE]
    variables = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables)


def test_the_log_goes_to_standard_error() -> None:
    quiet = run_alone(R2CCL_NO_SUCH_THING="1")
    assert quiet.returncode == 0, quiet.stderr
    assert "WARN" in quiet.stderr and "R2CCL_NO_SUCH_THING" in quiet.stderr
    assert "communicator created" not in quiet.stderr
    assert "communicator created" in run_alone(R2CCL_LOG="info").stderr
    impossible = run_alone(R2CCL_LOG="ccl=loud")
    assert impossible.returncode != 0 and "R2CCL_LOG=ccl=loud" in impossible.stderr
