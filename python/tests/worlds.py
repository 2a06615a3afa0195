"""Ranks as real processes, with a deadline.

`run(function, size)` starts `size` processes, which import the module of `function` and call
`function(communicator, *arguments)`. What the ranks return comes back in order of rank. Whatever happens,
no process is left.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import r2ccl

DEADLINE = 300.0
"""Seconds for a whole world; far more than any needs, because the machine may be busy."""

TIMEOUT = 200.0
"""Deadline of the calls of a rank, in seconds."""

CONTEXT = multiprocessing.get_context("spawn")


class RankFailed(AssertionError):
    """A rank raised something, or ended without a word."""


def run(function: Callable[..., Any], size: int, *arguments: Any, apart: bool = False) -> list[Any]:
    """What `function(communicator, *arguments)` returns on each of `size` ranks.

    With `apart` every rank is on a host of its own, as it seems, with two network cards.
    """
    results = outcomes(function, size, *arguments, apart=apart)
    failures = [(rank, result) for rank, result in enumerate(results) if isinstance(result, RankFailed)]
    if failures:
        # The first rank's failure may be but a consequence of another's.
        raise RankFailed("\n".join(f"rank {rank} of {size}: {failure}" for rank, failure in failures))
    return results


def outcomes(
    function: Callable[..., Any], size: int, *arguments: Any, apart: bool = False
) -> list[Any]:
    """As `run`, with a `RankFailed` in the place of a rank that failed."""
    unique_id = bytes(r2ccl.UniqueId())
    with contextlib.ExitStack() as stack:
        pipes: list[Connection] = []
        for rank in range(size):
            receiving, sending = CONTEXT.Pipe(duplex=False)
            entry = (sending, function, unique_id, rank, size, arguments, apart)
            process = CONTEXT.Process(target=_serve, args=entry, daemon=True)
            process.start()
            sending.close()
            stack.callback(_end, process, receiving)
            pipes.append(receiving)
        return _collect(pipes)


def _serve(
    sending: Connection,
    function: Callable[..., Any],
    unique_id: bytes,
    rank: int,
    size: int,
    arguments: tuple[Any, ...],
    apart: bool,
) -> None:
    """The life of a rank."""
    if apart:
        # Linux answers to every address of 127.0.0.0/8.
        os.environ["R2CCL_HOST_ID"] = f"host {rank}"
        os.environ["R2CCL_RAILS"] = f"127.0.{rank}.1,127.0.{rank}.2"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        key = r2ccl.UniqueId.from_bytes(unique_id)
        communicator = r2ccl.Communicator(key, rank, size, timeout=TIMEOUT)
        try:
            sending.send((True, function(communicator, *arguments)))
        finally:
            communicator.destroy()
    except BaseException:  # noqa: BLE001 the parent is told, whatever it is
        sending.send((False, traceback.format_exc()))


def _collect(pipes: list[Connection]) -> list[Any]:
    end = time.monotonic() + DEADLINE
    results: list[Any] = [RankFailed(f"no result within {DEADLINE} s")] * len(pipes)
    open_pipes = dict(zip(pipes, range(len(pipes)), strict=True))
    while open_pipes and time.monotonic() < end:
        for pipe in wait(list(open_pipes), timeout=end - time.monotonic()):
            assert isinstance(pipe, Connection)
            rank = open_pipes.pop(pipe)
            try:
                works, value = pipe.recv()
                results[rank] = value if works else RankFailed(value)
            except EOFError:
                results[rank] = RankFailed("it ended without a word")
    return results


def _end(process: BaseProcess, pipe: Connection) -> None:
    pipe.close()
    # A rank that has answered still takes leave of the others.
    process.join(timeout=60)
    if process.is_alive():
        process.kill()
        process.join()


@contextlib.contextmanager
def alone() -> Iterator[r2ccl.Communicator]:
    """A communicator of one rank, in this process."""
    with r2ccl.Communicator(r2ccl.UniqueId(), 0, 1, timeout=TIMEOUT) as communicator:
        yield communicator
