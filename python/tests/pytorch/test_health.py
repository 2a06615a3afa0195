"""Rails, and who is told about their faults."""

from __future__ import annotations

import dataclasses
import queue
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from worlds import run_world

import r2ccl.torch
from r2ccl.torch import FaultWatch, RailHealth, RailState, RailVerdict

SECONDS = 60.0

# Two ranks that never share memory, each with two addresses of this machine as rails.
TWO_RAILS = {"R2CCL_SHM": "0", "R2CCL_RAILS": "127.0.0.2,127.0.0.3"}


def record(
    rank: int, rail: int, state: RailState = RailState.UP, faults: int = 0
) -> tuple[Any, ...]:
    verdict = RailVerdict.UNKNOWN if faults == 0 else RailVerdict.LOCAL_NIC
    return (rank, rail, int(state), int(verdict), 1e9, faults, 0, 10, 1000, 0, 0, None, "")


class FakeBackend:
    """A backend whose rails are what the test says."""

    def __init__(self, *records: tuple[Any, ...]) -> None:
        self.records: list[tuple[Any, ...]] | None = list(records)

    def health(self) -> list[tuple[Any, ...]]:
        if self.records is None:
            raise RuntimeError("the process group was aborted or destroyed")
        return self.records


def test_a_change_is_told_once_with_what_was_before() -> None:
    backend = FakeBackend(record(0, 0), record(1, 0))
    told: queue.Queue[tuple[RailHealth, RailHealth | None]] = queue.Queue()
    watch = FaultWatch(backend, lambda now, before: told.put((now, before)))
    backend.records = [record(0, 0), record(1, 0, RailState.DOWN, faults=1)]
    now, before = told.get(timeout=SECONDS)
    assert (now.rank, now.state, now.verdict) == (1, RailState.DOWN, RailVerdict.LOCAL_NIC)
    assert before is not None and before.state is RailState.UP
    backend.records = [record(0, 0), record(1, 0, RailState.UP, faults=1)]
    now, before = told.get(timeout=SECONDS)
    assert now.state is RailState.UP and before is not None and before.state is RailState.DOWN
    watch.stop()
    assert not watch.is_running() and told.empty()


def test_a_callback_that_fails_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeBackend(record(0, 0))
    called = threading.Semaphore(0)

    def fail(now: RailHealth, before: RailHealth | None) -> None:
        called.release()
        raise ValueError("a bug in the callback")

    watch = FaultWatch(backend, fail)
    for faults in (1, 2):
        backend.records = [record(0, 0, RailState.DOWN, faults)]
        assert called.acquire(timeout=SECONDS)
    watch.stop()
    assert "a bug in the callback" in caplog.text


def test_the_watch_ends_with_its_group() -> None:
    backend = FakeBackend(record(0, 0))
    watch = FaultWatch(backend, lambda now, before: None)
    backend.records = None
    watch._thread.join(SECONDS)
    assert not watch.is_running()


def test_a_rail_is_a_value() -> None:
    rail = RailHealth.of_record(record(2, 3))
    assert (rail.rank, rail.rail, rail.state, rail.last_fault_ns) == (2, 3, RailState.UP, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rail.rank = 0  # type: ignore[misc]


def rails_of_a_real_group() -> None:
    told: list[RailHealth] = []
    watch = r2ccl.torch.on_fault(None, lambda now, before: told.append(now))
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor)
    rails = r2ccl.torch.health()
    assert [(rail.rank, rail.rail) for rail in rails] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    mine = [rail for rail in rails if rail.rank == dist.get_rank()]
    assert all(rail.state is RailState.UP and rail.bytes_per_second > 0 for rail in mine)
    assert sum(rail.sent_bytes for rail in mine) >= 4 * 100_000
    dist.barrier()
    dist.destroy_process_group()
    watch._thread.join(SECONDS)
    assert not watch.is_running()


def test_rails_between_hosts() -> None:
    run_world(2, rails_of_a_real_group, environment=TWO_RAILS)


def other_backends() -> str:
    try:
        r2ccl.torch.health(dist.new_group(backend="gloo"))
    except TypeError as error:
        return str(error)
    return "nothing"


def test_groups_of_other_backends_have_no_rails() -> None:
    for message in run_world(2, other_backends):
        assert "gloo" in message
