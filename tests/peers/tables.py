"""What compare.py has measured, as tables and verdicts in Markdown.

A *part* is one collective with one number of ranks, as plain data that goes through JSON: `operation`,
`ranks`, `sizes`, `timeout`, `calls` by size, when and of which commit it was `measured`, `versions` by candidate, and
`samples`: by candidate, a list for each size, with microseconds and
the nanoseconds of watch.py, which may be `null`, of each round. A candidate that was too slow has `Infinity`
microseconds, one that failed `NaN`.

The states of the machine are not mixed: what is compared in a row is of the state in which most candidates were measured.
A candidate that never was has all its rounds there, and a mark, as has what is computed from them; no verdict counts it.
"""

import json
import math
import os
import platform
import statistics
import time
from pathlib import Path

from candidates import IN_C, LIMITS, OURS, OWN, REGISTERED, commit, iterations, untimed
from watch import state

# Bytes that are moved over the wire by the busiest rank, per byte of the size.
FACTORS = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1,
    "alltoall": lambda ranks: (ranks - 1) / ranks,
}

# How much faster than the best peer this library has to be, by candidate, from a size on: with as many ranks
# as that, and with more.
BARS_FEW = {"ranks": 2, "from": 16 << 20, OURS: 1.5, REGISTERED: 3.0}
BARS_MANY = {"ranks": 4, "from": 1 << 20, OURS: 2.0, REGISTERED: 5.0}
# The share of what the memory allows that AllReduce of registered buffers has to reach, from a size on.
LEAST_SHARE, SHARE_FROM = 0.7, 16 << 20
# Below this size ranks wait for each other, not for the memory.
SHOWN_FROM = 1 << 20
# Up to this size an AllReduce is nothing but ranks that meet.
MEETING_BYTES = 8
# So many times ranks must meet at least. In memory of others they move bytes only after all have come, and return only after
# all have moved theirs; what is sent in tiles arrives once all have come, and a broadcast does without.
MEETINGS = {OURS: {"broadcast": 0, "other": 1}, REGISTERED: {"other": 2}}


class Record:
    """All parts, of this run and of those before it."""

    def __init__(self, parts):
        self.parts = parts

    @classmethod
    def read(cls, path):
        """What is in a file, if there is one."""
        known = path and Path(path).exists()
        return cls(json.loads(Path(path).read_text()) if known else [])

    def add(self, plan, found, samples):
        """Adds a part of candidates in the place of the one that measured the same, and returns it."""
        part = {
            "measured": moment(),
            "versions": {candidate.name: candidate.version for candidate in found},
            "operation": plan.operation,
            "ranks": plan.ranks,
            "sizes": plan.sizes,
            "timeout": plan.timeout,
            "calls": [iterations(size) for size in plan.sizes],
            "samples": {each.name: [samples[each.name, size] for size in plan.sizes] for each in found},
        }
        same = lambda other: all(other[key] == part[key] for key in ("operation", "ranks"))
        self.parts = [other for other in self.parts if not same(other)] + [part]
        return part

    def write(self, path):
        """Writes everything to a file, if there is to be one."""
        if path:
            Path(path).write_text(json.dumps(self.parts))


# Medians


def every_round(part, name, index):
    """All samples of a candidate for one size, those of rounds that failed too."""
    return part["samples"].get(name, [[]] * len(part["sizes"]))[index]


def rounds(part, name, index):
    """The samples of a candidate for one size."""
    return [sample for sample in every_round(part, name, index) if not math.isnan(sample[0])]


def failures(part, name, index):
    """How many rounds of a candidate failed for one size."""
    return len(every_round(part, name, index)) - len(rounds(part, name, index))


def own_failures(part):
    """How many rounds of this library failed."""
    return sum(failures(part, name, index) for name in (OURS, REGISTERED, IN_C) for index in range(len(part["sizes"])))


def states(samples):
    """In which states of the machine they were taken. Who was too slow would have been in any."""
    return {state(nanoseconds) for microseconds, nanoseconds in samples if microseconds != math.inf}


def compared_state(part, index):
    """The state of the machine in which a size is compared: most candidates were measured in it, or most often."""
    samples = [rounds(part, name, index) for name in part["samples"]]

    def weight(one):
        candidates = sum(one in states(each) for each in samples)
        return candidates, sum(state(nanoseconds) == one for each in samples for _, nanoseconds in each)

    return max(("near", "far", None), key=weight)


def comparable(part, name, index):
    """The samples of a candidate that are compared for one size, and whether they are of the right state."""
    one = compared_state(part, index)
    samples = rounds(part, name, index)
    of_state = [sample for sample in samples if sample[0] == math.inf or state(sample[1]) == one]
    return of_state or samples, bool(of_state) or not samples


def times(part, name, index):
    """The microseconds of a candidate that are compared for one size."""
    return [microseconds for microseconds, _ in comparable(part, name, index)[0]]


def median(part, name, index):
    """Of what is compared for one size; no number where nothing was measured."""
    values = times(part, name, index)
    return statistics.median(values) if values else math.nan


def best_peer(part, index):
    """The least time of a peer, and its name."""
    peers = [name for name in part["samples"] if name not in OWN]
    times = {name: median(part, name, index) for name in peers}
    times = {name: time for name, time in times.items() if math.isfinite(time)}
    name = min(times, key=times.get, default=None)
    return times.get(name, math.nan), name


def is_comparable(part, names, index):
    """Whether all of these candidates were measured in the state in which a size is compared."""
    return all(comparable(part, name, index)[1] for name in names)


def ratio(part, name, index):
    """The time of the best peer over that of a candidate."""
    return over(best_peer(part, index)[0], part, name, index)


def over(microseconds, part, name, index):
    """So many microseconds over those of a candidate: nothing for one that failed in every round."""
    failed = failures(part, name, index) > 0 and not rounds(part, name, index)
    return 0.0 if failed and math.isfinite(microseconds) else microseconds / median(part, name, index)


def meetings(parts):
    """How long ranks take to meet, by their number, if that was measured: an AllReduce of a few bytes."""
    reduced = [part for part in parts if part["operation"] == "all_reduce" and part["sizes"][0] <= MEETING_BYTES]
    times = {part["ranks"]: median(part, OURS, 0) for part in reduced}
    return {ranks: time for ranks, time in times.items() if math.isfinite(time)}


def allowed(part, name, index, meeting=0.0):
    """How many times as fast as the best peer the limit of a candidate is, whose ranks take so long to meet. No number where
    the memory hardly matters."""
    if part["sizes"][index] < SHOWN_FROM:
        return math.nan
    times = MEETINGS[name].get(part["operation"], MEETINGS[name]["other"])
    return best_peer(part, index)[0] / (median(part, LIMITS[name], index) + times * meeting)


def share(part, name, index):
    """The part of what the memory allows that a candidate reaches."""
    if part["sizes"][index] < SHOWN_FROM:
        return math.nan
    return over(median(part, LIMITS[name], index), part, name, index)


# Tables


def table(part):
    """A Markdown table of one collective with one number of ranks."""
    names = list(part["samples"])
    own = [name for name in (OURS, REGISTERED) if name in names]
    limited = [name for name in own if LIMITS[name] in names]
    head = ["size", *names, f"{OURS} busbw", *(f"best peer / {name}" for name in own),
            *(f"share of the {LIMITS[name]}" for name in limited), "rounds, least to most", "cache line"]
    title = f"### {part['operation']}, {part['ranks']} ranks"
    versions = ", ".join(f"{name} {version}" for name, version in part.get("versions", {}).items() if name not in OWN)
    origin = ". ".join(filter(None, (part.get("measured"), versions)))
    lines = [title, "", *([origin, ""] if origin else []), row(head), row(["---"] * len(head))]
    for index, size in enumerate(part["sizes"]):
        time = median(part, OURS, index)
        bandwidth = size * FACTORS[part["operation"]](part["ranks"]) / time / 1e3
        lines.append(row([
            size_name(size),
            *(cell(part, name, index) for name in names),
            f"{bandwidth:.2f} GB/s" if math.isfinite(time) else "-",
            *(marked(number(ratio(part, name, index)), part, (name, best_peer(part, index)[1]), index) for name in own),
            *(marked(percent(share(part, name, index)), part, (name, LIMITS[name]), index) for name in limited),
            spread(times(part, OURS, index)),
            distance(part, index),
        ]))
    return "\n".join(lines)


def row(cells):
    """A line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def cell(part, name, index):
    """The time of a candidate; more than what was granted per call, if it was too slow. And how many of its rounds failed."""
    microseconds = median(part, name, index)
    if math.isnan(microseconds):
        return "failed"
    failed = failures(part, name, index)
    remark = f", {failed} of {len(every_round(part, name, index))} rounds failed" if failed else ""
    if microseconds == math.inf:
        return f"> {duration(part['timeout'] / part['calls'][index] * 1e6)} µs{remark}"
    return marked(f"{duration(microseconds)} µs", part, (name,), index) + remark


def marked(text, part, names, index):
    """What comes of the times of some candidates, with a mark if one was measured in another state of the machine."""
    return text if text == "-" or is_comparable(part, names, index) else f"{text} *"


def distance(part, index):
    """How long a cache line took from one processor to the other in what is compared, and how many samples that are of all."""
    samples = [sample for name in part["samples"] for sample in rounds(part, name, index) if sample[0] != math.inf]
    one = compared_state(part, index)
    same = [nanoseconds for _, nanoseconds in samples if state(nanoseconds) == one]
    if one is None or not same:
        return "-"
    return f"{statistics.median(same):.0f} ns, {len(same)} of {len(samples)}"


def number(value):
    """A ratio, if there is one."""
    return f"{value:.2f}" if math.isfinite(value) and value > 0 else "-"


def percent(value):
    """A share, if there is one."""
    return f"{100 * value:.0f} %" if math.isfinite(value) and value > 0 else "-"


def duration(microseconds):
    """Microseconds with three significant digits at least."""
    digits = 2 if microseconds < 10 else 1 if microseconds < 100 else 0
    return f"{microseconds:.{digits}f}"


def size_name(size):
    """A size as people write it."""
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {letter}B"
    return f"{size} B"


def spread(values):
    """Least and most of the rounds, in microseconds."""
    finite = [value for value in values if math.isfinite(value)]
    return f"{duration(min(finite))} – {duration(max(finite))}" if finite else "-"


# Verdicts


def verdicts(parts):
    """Which bars are met, and where and by how much others are missed."""
    known = meetings(parts)
    lines = [line for part in parts for line in judged(part, known.get(part["ranks"], 0.0))]
    return "\n".join(["Bars:", "", *lines]) if lines else ""


def judged(part, meeting=0.0):
    """A line for every bar that holds for a part, whose ranks take so long to meet."""
    bars = BARS_FEW if part["ranks"] < BARS_MANY["ranks"] else BARS_MANY
    everywhere = {"from": 0, OURS: 1.0}
    for asked in (everywhere, bars):
        for name in (OURS, REGISTERED):
            if name in asked:
                yield from judged_beside_peers((part, meeting), name, asked[name], asked["from"])
    if part["operation"] == "all_reduce":
        values = {index: share(part, REGISTERED, index) for index in indices(part, SHARE_FROM)}
        beside = {index: (REGISTERED, LIMITS[REGISTERED]) for index in values}
        bar = f"{REGISTERED} {percent(LEAST_SHARE)} of what the memory allows"
        yield from verdict(part, bar, LEAST_SHARE, (values, beside), lambda index: percent(values[index]))


def judged_beside_peers(measured, name, bar, least):
    """A line for a bar that the best peer sets, which may be beyond the limit."""
    part, meeting = measured
    values = {index: ratio(part, name, index) for index in indices(part, least)}
    beside = {index: (name, best_peer(part, index)[1]) for index in values}
    ceilings = {index: allowed(part, name, index, meeting) for index in values}

    def text(index):
        known = math.isfinite(ceilings[index]) and ceilings[index] > 0
        return number(values[index]) + (f" (the limit: {number(ceilings[index])})" if known else "")

    def remark(missed):
        impossible = sum(0 < ceilings[index] < bar for index in missed)
        return f"; {impossible} of them ask{'s' * (impossible == 1)} for more than the limit" if impossible else ""

    start = f" from {size_name(least)} on" if least else ""
    yield from verdict(part, f"{name} {bar:g} times as fast as the best peer{start}", bar, (values, beside), text, remark)


def indices(part, least):
    """Of the sizes from one on."""
    return [index for index, size in enumerate(part["sizes"]) if size >= least]


def verdict(part, bar, least, measured, text, remark=lambda missed: ""):
    """A line for a bar, if anything was measured: the sizes that miss it, each as text, and a remark about them. Who has
    no time, because of failures or the limit of time, misses it. What was `measured` is a value for each size, and the
    candidates whose times it is made of; it does not count if these are of different states of the machine."""
    values, beside = measured
    known = {index: value for index, value in values.items() if math.isfinite(value)}
    values = {index: value for index, value in known.items() if is_comparable(part, beside[index], index)}
    missed = [index for index, value in values.items() if value < least]
    described = lambda index: text(index) if values[index] else "without a time"
    cells = ", ".join(f"{size_name(part['sizes'][index])} {described(index)}" for index in missed)
    if not known:
        return
    outcome = f"**missed** in {len(missed)} of {len(values)}: {cells}{remark(missed)}" if missed else \
        f"met in all {len(values)}"
    mixed = len(known) - len(values)
    outcomes = [outcome] * bool(values) + [f"{mixed} not judged, of different states of the machine"] * bool(mixed)
    yield f"- {part['operation']}, {part['ranks']} ranks, {bar}: {'; '.join(outcomes)}"


# The document


def circumstances(found, missing, command, arguments):
    """When, where, of what, and how often was measured."""
    sizes = ", ".join(
        f"{size_name(size)} {untimed(size)} + {iterations(size)}" for size in arguments.sizes
    )
    lines = [
        f"- {moment()}",
        f"- {processor()}, {os.cpu_count()} cores, Linux {platform.release()}; "
        f"load average at the end {os.getloadavg()[0]:.1f}",
        f"- `{command}`",
        f"- median of {arguments.rounds} rounds; calls per round, untimed and timed: {sizes}",
    ]
    lines += [f"- {candidate.name}: {candidate.version}" for candidate in found]
    lines += [f"- not measured: {line}" for line in missing]
    return "\n".join(lines)


def moment():
    """Now, and the commit."""
    return f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, commit {commit()}"


def write_document(text, path):
    """Replaces what is between the markers of the document."""
    begin, end = "<!-- measured: begin -->", "<!-- measured: end -->"
    document = path.read_text()
    before, rest = document.split(begin)
    after = rest.split(end)[1]
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def processor():
    """The name of the processor, and what tells generations of that name apart."""
    rows = [line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line]
    first = {key.strip(): value.strip() for key, value in reversed(rows)}
    numbers = "".join(f", {key} {first[key]}" for key in ("cpu family", "model") if key in first)
    vectors = next((name for name in ("avx512f", "avx2") if name in first.get("flags", "").split()), "no AVX2")
    return f"{first.get('model name', platform.machine())}{numbers}, {vectors}"
