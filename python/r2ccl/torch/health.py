"""How the rails of a process group are, and who is told when that changes."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_POLL_SECONDS = 0.05
_LOG = logging.getLogger(__name__)


class RailState(enum.IntEnum):
    """Whether a rail, a network card of a rank, carries data."""

    UP = 0
    SUSPECT = 1
    DOWN = 2
    QUARANTINED = 3


class RailVerdict(enum.IntEnum):
    """What is broken, seen from the rank of the rail."""

    LOCAL_NIC = 0
    REMOTE_NIC = 1
    PATH = 2
    UNKNOWN = 3


@dataclass(frozen=True)
class RailHealth:
    """One rail of one rank; of other ranks as of their last report, which comes with every change.

    Attributes:
        rank: the rank in the group.
        rail: its number among the rails of the rank.
        state: whether it carries data.
        verdict: what is broken now, or was at the last fault.
        bytes_per_second: its capacity in each direction.
        faults: how often it went down.
        returns: how often it came back.
        tiles: tiles sent on it.
        sent_bytes: bytes sent on it.
        resent_tiles: tiles sent again, on any rail, that had been sent on this one.
        resent_bytes: the bytes of these.
        last_fault_ns: nanoseconds from the creation of the group to the last fault, or None.
        evidence: what speaks for the verdict, for people to read.
    """

    rank: int
    rail: int
    state: RailState
    verdict: RailVerdict
    bytes_per_second: float
    faults: int
    returns: int
    tiles: int
    sent_bytes: int
    resent_tiles: int
    resent_bytes: int
    last_fault_ns: int | None
    evidence: str

    @classmethod
    def of_record(cls, record: tuple[Any, ...]) -> RailHealth:
        """From a tuple of the compiled module."""
        rank, rail, state, verdict, *others = record
        return cls(rank, rail, RailState(state), RailVerdict(verdict), *others)

    def condition(self) -> tuple[RailState, RailVerdict, int, int]:
        """What makes a change worth telling; counters of traffic are not part of it."""
        return self.state, self.verdict, self.faults, self.returns


Callback = Callable[[RailHealth, RailHealth | None], None]
"""Gets a rail as it is, and as it was when it was last looked at; None if it is new."""


def health(group: ProcessGroup | None = None) -> list[RailHealth]:
    """All rails of all ranks of a group, in order of rank and rail. Asks no other rank.

    Args:
        group: a group of this backend; the default group if None.

    Raises:
        TypeError: the group has other backends.
        torch.distributed.DistBackendError: the group was aborted or destroyed.
    """
    return _rails(_backend(group))


def lost_ranks(group: ProcessGroup | None = None) -> list[int]:
    """The ranks of a group that are lost to this one as far as is known, in order.

    Those have ended, left, or cannot be reached, or did not come to a :func:`shrink_group` that failed, or were
    excluded by ranks that came to it. Asks no other rank, which may know of others, nor the store. Of a group that was
    aborted they are those that were known then. Who has aborted the group to go on is among them until a
    :func:`shrink_group` of this rank has seen it.

    Args:
        group: as for :func:`health`.

    Raises:
        TypeError: as for :func:`health`.
    """
    return sorted(_backend(group).lost_ranks())


def on_fault(group: ProcessGroup | None, callback: Callback) -> FaultWatch:
    """Calls back, in a thread of its own, when a rail fails, is suspected, or returns.

    Faults are survived by themselves; this is for logs, alarms and dashboards. The thread looks
    twenty times a second, and ends with the group. What the callback raises is logged.

    Args:
        group: as for :func:`health`.
        callback: called with the rail as it is now and as it was.

    Raises:
        TypeError: as for :func:`health`.
    """
    return FaultWatch(_backend(group), callback)


class FaultWatch:
    """A running :func:`on_fault`."""

    def __init__(self, backend: Any, callback: Callback) -> None:
        self._backend = backend
        self._callback = callback
        self._known = _by_place(_rails(backend))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="r2ccl-on-fault", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the calls. Returns when none is under way, unless a callback calls it."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def is_running(self) -> bool:
        """Whether it still looks; it stops by itself when the group ends."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            try:
                rails = _by_place(_rails(self._backend))
            except RuntimeError:
                return
            self._tell(rails)
            self._known = rails

    def _tell(self, rails: dict[tuple[int, int], RailHealth]) -> None:
        for place, rail in rails.items():
            before = self._known.get(place)
            if before is not None and before.condition() == rail.condition():
                continue
            try:
                self._callback(rail, before)
            except Exception:
                _LOG.exception("a callback of on_fault failed")


def _backend(group: ProcessGroup | None) -> Any:
    """The compiled backend of a group, also behind the wrapper of TORCH_DISTRIBUTED_DEBUG."""
    import torch.distributed as dist

    chosen = dist.group.WORLD if group is None else group
    if chosen is None:
        raise ValueError("there is no default process group: call init_process_group first")
    # One for each kind of device, or one for all.
    backends = [chosen._get_backend(device) for device in chosen._device_types]
    backends = [getattr(backend, "wrapped_pg", backend) for backend in backends]
    for backend in backends:
        if hasattr(backend, "health"):
            return backend
    names = " and ".join(backend.name() for backend in backends)
    raise TypeError(f"the backend of the group is {names}, not r2ccl")


def _rails(backend: Any) -> list[RailHealth]:
    return [RailHealth.of_record(record) for record in backend.health()]


def _by_place(rails: list[RailHealth]) -> dict[tuple[int, int], RailHealth]:
    return {(rail.rank, rail.rail): rail for rail in rails}
