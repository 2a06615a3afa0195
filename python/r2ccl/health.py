"""How the rails are: the network cards of the ranks, and the paths between them.

`Communicator.health()` returns one `RailHealth` for each rail of each rank. What is said of other ranks
is as of their last report, which comes with every change.
"""

from __future__ import annotations

import dataclasses
import enum

__all__ = ["RailCounters", "RailHealth", "RailState", "Verdict"]


class RailState(str, enum.Enum):
    """Whether a rail carries data."""

    UP = "up"
    """It works."""
    SUSPECT = "suspect"
    """Something is odd; it is being probed."""
    DOWN = "down"
    """It does not work; calls go on over the others."""
    QUARANTINED = "quarantined"
    """It works, but has failed too often lately."""


class Verdict(str, enum.Enum):
    """What is broken, seen from the rank of the rail."""

    LOCAL_NIC = "local NIC"
    REMOTE_NIC = "remote NIC"
    PATH = "path"
    UNKNOWN = "unknown"
    """Nothing is, or the evidence does not say what."""


@dataclasses.dataclass(frozen=True)
class RailCounters:
    """What has happened on a rail since its communicator was made.

    Attributes:
        faults: Times it went down.
        returns: Times it came back.
        tiles: Tiles sent on it.
        bytes: Bytes sent on it.
        resent_tiles: Tiles sent again after a fault, on any rail, that had been sent on this one.
        resent_bytes: Their bytes.
    """

    faults: int
    returns: int
    tiles: int
    bytes: int
    resent_tiles: int
    resent_bytes: int


@dataclasses.dataclass(frozen=True)
class RailHealth:
    """One rail of one rank.

    Attributes:
        rank: Whose rail.
        rail: Its number among the rails of the rank.
        state: Whether it carries data.
        verdict: What is broken, or was at the last fault.
        bytes_per_second: Its capacity in each direction.
        counters: What has happened on it.
        evidence: What speaks for the verdict, for people; empty without a fault.
        last_fault: When it failed last, in seconds since its communicator was made, or None.
    """

    rank: int
    rail: int
    state: RailState
    verdict: Verdict
    bytes_per_second: float
    counters: RailCounters
    evidence: str
    last_fault: float | None
