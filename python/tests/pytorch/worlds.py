"""Worlds of real processes for the tests: each runs a function on every rank and has a deadline.

The processes are forked by a server that has imported PyTorch once, so a world costs milliseconds.
The store in which the ranks meet lives in the process of the test, so that any rank may die.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch.distributed as dist

SECONDS = 300.0
"""Deadline of a world; far beyond what any of them needs."""

GROUP_SECONDS = 120.0
"""Timeout of the default group, where a test does not choose another one."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "r2ccl.torch"])


@dataclass(frozen=True)
class Outcome:
    """How one rank ended.

    Attributes:
        value: what the function returned, if it did.
        error: the traceback of what it raised, else "".
        exit_code: of the process; negative for a signal.
        seconds: how long it ran.
    """

    value: Any
    error: str
    exit_code: int | None
    seconds: float


@dataclass(frozen=True)
class Plan:
    """How a rank begins."""

    port: int
    rank: int
    size: int
    backend: str
    environment: dict[str, str]
    timeout: timedelta


def run_world(
    size: int, function: Callable[..., Any], *arguments: Any, **options: Any
) -> list[Any]:
    """What ``function(*arguments)`` returns on each of ``size`` ranks.

    Options are those of :func:`outcomes_of`.

    Raises:
        AssertionError: a rank raised, died, or was not done before the deadline.
    """
    outcomes = outcomes_of(size, function, *arguments, **options)
    failures = [
        f"rank {rank} (exit code {outcome.exit_code}):\n{outcome.error}"
        for rank, outcome in enumerate(outcomes)
        if outcome.error or outcome.exit_code != 0
    ]
    assert not failures, "\n".join(failures)
    return [outcome.value for outcome in outcomes]


def outcomes_of(
    size: int,
    function: Callable[..., Any],
    *arguments: Any,
    backend: str = "r2ccl",
    environment: dict[str, str] | None = None,
    timeout: float = GROUP_SECONDS,
    seconds: float = SECONDS,
) -> list[Outcome]:
    """Runs ``function(*arguments)`` on each of ``size`` ranks, in a default group of ``backend``.

    Args:
        environment: variables of all ranks.
        timeout: of the default group, seconds.
        seconds: deadline of the world; who is not done by then is killed.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    deadline = time.monotonic() + seconds
    plans = [
        Plan(store.port, rank, size, backend, environment or {}, timedelta(seconds=timeout))
        for rank in range(size)
    ]
    with _started(plans, function, arguments) as ranks:
        return _collected(ranks, deadline)


@contextlib.contextmanager
def _started(
    plans: list[Plan], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Iterator[list[tuple[ForkServerProcess, Connection]]]:
    ranks = []
    try:
        for plan in plans:
            mine, theirs = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(target=_be_rank, args=(plan, theirs, function, arguments))
            process.start()
            theirs.close()
            ranks.append((process, mine))
        yield ranks
    finally:
        for process, connection in ranks:
            if process.is_alive():
                process.kill()
            process.join()
            connection.close()


def _collected(ranks: list[tuple[ForkServerProcess, Connection]], deadline: float) -> list[Outcome]:
    began = time.monotonic()
    outcomes = [
        Outcome(None, "it was not done before the deadline of the world", None, 0.0) for _ in ranks
    ]
    pending = {connection: rank for rank, (_, connection) in enumerate(ranks)}
    while pending and time.monotonic() < deadline:
        for ready in wait(list(pending), timeout=deadline - time.monotonic()):
            rank = pending.pop(ready)
            outcomes[rank] = _outcome_of(ranks[rank][0], ready, deadline, began)
    return outcomes


def _outcome_of(
    process: ForkServerProcess, connection: Connection, deadline: float, began: float
) -> Outcome:
    try:
        value, error = connection.recv()
    except EOFError:
        value, error = None, "it died without a word"
    process.join(max(deadline - time.monotonic(), 0.0))
    return Outcome(value, error, process.exitcode, time.monotonic() - began)


def _be_rank(
    plan: Plan, connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """The whole life of a rank."""
    import torch

    torch.set_num_threads(1)
    os.environ.update(plan.environment)
    try:
        store = dist.TCPStore("127.0.0.1", plan.port, is_master=False)
        dist.init_process_group(
            plan.backend, store=store, rank=plan.rank, world_size=plan.size, timeout=plan.timeout
        )
        value = function(*arguments)
        if dist.is_initialized():
            dist.destroy_process_group()
        connection.send((value, ""))
    except BaseException:
        connection.send((None, traceback.format_exc()))
        # Threads of a group that has failed do not keep the process.
        os._exit(1)


def meet(name: str, size: int | None = None) -> None:
    """Returns when every rank, or as many as ``size``, has called this with this ``name``, which is used once.

    The ranks meet in the store, not in a group. Who leaves a barrier of a group may go before others have left it,
    and what it does to the group then, such as an abort, ends their barrier too.
    """
    store = dist.distributed_c10d._get_default_store()
    if store.add(f"{name} met", 1) == (size or dist.get_world_size()):
        store.set(f"{name} complete", "1")
    store.wait([f"{name} complete"])


def await_end_of_threads() -> None:
    """Returns when this process has no thread of a group any more.

    Rank 0 has some until all others have taken leave.
    """
    while any(name.startswith("r2ccl") for name in names_of_threads()):
        time.sleep(0.01)


def names_of_threads() -> list[str]:
    """Those of all threads of this process, in Python or not."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        # It may end meanwhile.
        with contextlib.suppress(OSError):
            names.append((task / "comm").read_text())
    return names


def die() -> None:
    """Ends this rank at once, as a crash would."""
    os.kill(os.getpid(), signal.SIGKILL)
