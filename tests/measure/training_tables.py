"""What the runs of training.py show: what a cut costs, whether results are alike, and the tables."""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "peers"))
from tables import row  # noqa: E402

OURS = "r2ccl"
NS_PER_MS = 1e6
# Steps that are not counted, in which memory is touched for the first time.
LEAD_STEPS = 10
# A cut at the end of a step may hold up the one after.
STEPS_OF_A_CUT = 2


@dataclass(frozen=True)
class Order:
    """What is done to a cable, after so many steps."""

    after_steps: int
    turn: str  # cut or heal
    fault: str
    host: int
    rail: int


@dataclass(frozen=True)
class Act:
    """An order that was carried out, when the kernel was asked, in ns of CLOCK_MONOTONIC."""

    order: Order
    began_ns: int


@dataclass(frozen=True)
class Step:
    """A step as rank 0 saw it; two runs are alike if their values are."""

    value: str
    began_ns: int
    ended_ns: int


@dataclass
class Run:
    """What happened in one run."""

    outcome: str = "finished"  # or hung, or aborted
    status: int | None = None
    ended_ns: int = 0
    steps: list[Step] = dataclasses.field(default_factory=list)
    acts: list[Act] = dataclasses.field(default_factory=list)
    notices: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    parameters: str | None = None
    said: str = ""


def durations(run: Run) -> list[float]:
    """Milliseconds of all steps."""
    return [(step.ended_ns - step.began_ns) / NS_PER_MS for step in run.steps]


def usual_ms(run: Run) -> float:
    """The median of the steps before the first fault; no number if it did not come so far."""
    end = run.acts[0].order.after_steps if run.acts else None
    return statistics.median(durations(run)[LEAD_STEPS:end] or [math.nan])


def place_of(run: Run, act: Act) -> tuple[int, int] | None:
    """The first step after the fault or repair before, and the step of this one; None if that did not end."""
    before = [other.order.after_steps for other in run.acts if other.began_ns < act.began_ns]
    hit = next((number for number, step in enumerate(run.steps) if step.ended_ns > act.began_ns), None)
    return None if hit is None else (max(before, default=LEAD_STEPS), hit)


def cost_ms(run: Run, place: tuple[int, int]) -> float:
    """By how much the longer of the steps that a cut can hold up exceeds the median of those before."""
    before, hit = place
    times = durations(run)
    return max(times[hit:hit + STEPS_OF_A_CUT]) - statistics.median(times[before:hit])


def costs_ms(runs: list[Run], cut_runs: list[Run], kind: str | None = None) -> list[float]:
    """Costs of all cuts of a kind; of none, if the runs are others than those that were cut."""
    places = [
        (run, place_of(other, act)) for run, other in zip(runs, cut_runs) for act in cuts_of(other)
        if kind in (None, act.order.fault)
    ]
    return [cost_ms(run, place) for run, place in places if place is not None and place[1] < len(run.steps)]


def noticed_ms(run: Run, act: Act) -> float | None:
    """From a cut until the first rank gave the rail up, never too short.

    Ranks tell the time of a fault since their group was made. Rank 0 looks at all ranks every 50 ms, so
    the one of all faults that it saw soonest after it had happened tells when that was.
    """
    made: dict[int, int] = {}
    for notice in run.notices:
        if notice["last_fault_ns"] is not None:
            latest = notice["at_ns"] - notice["last_fault_ns"]
            made[notice["rank"]] = min(latest, made.get(notice["rank"], latest))
    times = [
        made[notice["rank"]] + notice["last_fault_ns"] - act.began_ns for notice in notices_after(run, act)
        if notice["state"] != "UP" and notice["last_fault_ns"] is not None
    ]
    later = [time_ns for time_ns in times if time_ns > 0]
    return min(later) / NS_PER_MS if later else None


def returned_ms(run: Run, act: Act) -> float | None:
    """From the repair of a cable until rank 0 knew that all ranks use the rail again."""
    back = [notice for notice in notices_after(run, act) if notice["state"] == "UP"]
    first = {notice["rank"]: notice["at_ns"] for notice in reversed(back)}
    return (max(first.values()) - act.began_ns) / NS_PER_MS if first else None


def notices_after(run: Run, act: Act) -> list[dict[str, Any]]:
    """What rank 0 was told of the rail until something else was done to it."""
    rail = act.order.rail
    moments = [other.began_ns for other in run.acts if other.order.rail == rail]
    end = min((moment for moment in moments if moment > act.began_ns), default=run.ended_ns)
    return [
        notice for notice in run.notices if notice["rail"] == rail and act.began_ns < notice["at_ns"] < end
    ]


def likeness(run: Run, reference: Run) -> str:
    """Whether a run has the values of another one, as far as it went."""
    mine, theirs = ([step.value for step in other.steps] for other in (run, reference))
    differing = [number for number, (one, other) in enumerate(zip(mine, theirs)) if one != other]
    if differing:
        return f"**different** from step {differing[0]} on"
    if len(mine) != len(theirs):
        return "identical as far as they go"
    return "identical" if run.parameters == reference.parameters else "**different** parameters"


# The tables


@dataclass
class Result:
    """All runs of one program on so many hosts with the same orders, and what they are compared with."""

    hosts: int
    name: str
    lost: str
    runs: list[Run]
    reference: Run

    def kinds(self) -> list[str]:
        """The kinds of its faults."""
        return sorted({act.order.fault for run in self.runs for act in run.acts})

    def cuts(self) -> str:
        """What was cut, and how."""
        return f"{self.lost} ({', '.join(self.kinds())})" if self.kinds() else self.lost

    def is_sound(self) -> bool:
        """Whether all runs ended, with the same values."""
        return all(
            run.outcome == "finished" and likeness(run, self.reference) == "identical" for run in self.runs
        )


def outcomes(results: list[Result], patience: float) -> str:
    """The table of all programs; who made no step for so many seconds hangs."""
    head = ["hosts", "library", "what was cut", "outcome", "steps", "losses and parameters"]
    rows = [row(head), row(["---"] * len(head))]
    for result in results:
        alike = " / ".join(sorted({likeness(run, result.reference) for run in result.runs}))
        if "MPI" in result.name:
            wrong = any(step.value != "0" for run in result.runs for step in run.steps)
            alike = "**wrong sums**" if wrong else f"{alike}: all sums are right"
        if not any(run.steps for run in result.runs):
            alike = "-"
        made = " / ".join(sorted({f"{len(run.steps)}" for run in result.runs}))
        rows.append(row([
            str(result.hosts), result.name, result.cuts(),
            outcome_of(result, patience), made, alike,
        ]))
    return "\n".join(rows)


def outcome_of(result: Result, patience: float) -> str:
    """How the runs ended."""
    bad = next((run for run in result.runs if run.outcome != "finished"), None)
    if bad is None:
        costs = costs_ms(result.runs, result.runs)
        usual = statistics.median(usual_ms(run) for run in result.runs)
        cost = f", a cut costs at most {max(costs):.0f} ms" if costs else ""
        return f"finishes; {usual:.0f} ms a step{cost}"
    if bad.outcome == "hung":
        return f"hangs: no step in {patience:.0f} s"
    since = f" {(bad.ended_ns - bad.acts[-1].began_ns) / 1e9:.1f} s after the cut" if bad.acts else ""
    return f"aborts{since} with status {bad.status}"


def cuts_of(run: Run) -> list[Act]:
    """What was cut in a run."""
    return [act for act in run.acts if act.order.turn == "cut"]


def faults(results: list[Result]) -> str:
    """The table of the faults that this library has survived, by kind."""
    head = ["hosts", "what was cut", "how", "cuts", "usual step", "given up by a rank after",
            "the step takes longer by", "in use again after its repair"]
    rows = [row(head), row(["---"] * len(head))]
    mine = [result for result in results if result.name == OURS]
    for calm in (result for result in mine if not result.kinds()):
        cut = [result for result in mine if result.hosts == calm.hosts and result.kinds()]
        rows += [fault_row(result, kind) for result in cut for kind in result.kinds()]
        costs = [cost for result in cut for cost in costs_ms(calm.runs, result.runs)]
        rows.append(row([
            str(calm.hosts), "nothing, at the same steps", "", "", usual_of(calm.runs), "", spread(costs), "",
        ]))
    return "\n".join(rows)


def fault_row(result: Result, kind: str) -> str:
    """What the faults of a kind have cost."""
    acts = [(run, act) for run in result.runs for act in run.acts if act.order.fault == kind]
    cuts = [(run, act) for run, act in acts if act.order.turn == "cut"]
    heals = [(run, act) for run, act in acts if act.order.turn == "heal"]
    return row([
        str(result.hosts), result.lost, kind, str(len(cuts)), usual_of(result.runs),
        spread([noticed_ms(*cut) for cut in cuts]), spread(costs_ms(result.runs, result.runs, kind)),
        spread([returned_ms(*heal) for heal in heals]),
    ])


def usual_of(runs: list[Run]) -> str:
    """The usual step of runs."""
    return f"{statistics.median(usual_ms(run) for run in runs):.0f} ms"


def spread(values: Sequence[float | None]) -> str:
    """Median and most of what is known, in milliseconds."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    unknown = f", {len(values) - len(known)} unknown" if len(known) < len(values) else ""
    return f"{statistics.median(known):.0f} ms, at most {max(known):.0f} ms{unknown}"
