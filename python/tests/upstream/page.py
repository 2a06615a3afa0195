"""Writes what is known about the tests as a page of documentation."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import expected
from results import FAILED, PASSED, SKIPPED, TIMEOUT, Entry, Results

BACKENDS = ("r2ccl", "gloo")

_WORDS = {
    PASSED: "passes",
    SKIPPED: "skipped",
    FAILED: "fails",
    TIMEOUT: "times out",
}

_SKIPS = (
    (re.compile("accelerator|nccl", re.IGNORECASE), "They need GPUs or NCCL"),
    (re.compile("://"), "PyTorch has switched them off"),
)
"""What reasons of skips look like, and what they mean."""

_HEAD = """\
# PyTorch's own tests

The wheel of PyTorch has the tests of its own backends. `python/tests/upstream` runs them with this
backend and with Gloo on the same machine, and writes this page:

```sh
export PYTHONPATH=python                 # or an installed package
VENV/bin/python python/tests/upstream/run.py --json results.json      # goes on with --resume
VENV/bin/python python/tests/upstream/run.py --json results.json --table docs/pytorch-upstream.md
```

It needs NumPy and expecttest, and takes half an hour on two cores. `DistributedTest` is run, and
data-parallel training under remote calls: whatever of the wheel is about a backend. The other tests
in it are about remote calls, or about no process group at all.

Both backends are asked the same: what PyTorch asks of Gloo, and what it asks of MPI only but could
ask of others. Ranks are forked, not spawned; all of them must end well, not only the first. Tests
that want eight ranks get them. A test that does not pass is run a second time.
"""


def page(results: Results) -> str:
    """The page, in Markdown."""
    tests = sorted(results.entries)
    ran = [test for test in tests if not _is_skipped(results, test)]
    sections = [_HEAD, _counts(results, tests), _differences(results, ran), _table(results, ran)]
    return "\n".join([*sections, _skipped(results, sorted(set(tests) - set(ran)))])


def _is_skipped(results: Results, test: str) -> bool:
    return all(entry.verdict == SKIPPED for entry in results.entries[test].values())


def _counts(results: Results, tests: list[str]) -> str:
    lines = [f"{results.about}:", "", "| | r2ccl | Gloo |", "|---|---|---|"]
    counts = {
        backend: Counter(
            entry.verdict for test in tests if (entry := results.get(test, backend)) is not None
        )
        for backend in BACKENDS
    }
    for verdict, word in _WORDS.items():
        lines.append("| " + " | ".join([word, *(str(counts[b][verdict]) for b in BACKENDS)]) + " |")
    return "\n".join([*lines, ""])


def _differences(results: Results, ran: list[str]) -> str:
    lines = ["## What does not pass", "", "| test | r2ccl | Gloo | why |", "|---|---|---|---|"]
    for test in ran:
        entries = [results.get(test, backend) for backend in BACKENDS]
        if all(entry is None or entry.verdict == PASSED for entry in entries):
            continue
        why = [expected.reason(test, backend) for backend in BACKENDS]
        text = "; ".join(dict.fromkeys(reason for reason in why if reason)) or "not known"
        lines.append(f"| `{test}` | {_word(entries[0])} | {_word(entries[1])} | {text} |")
    return "\n".join([*lines, ""])


def _table(results: Results, ran: list[str]) -> str:
    lines = ["## All tests that run", "", "| test | ranks | r2ccl | Gloo |", "|---|---|---|---|"]
    for test in ran:
        entries = [results.get(test, backend) for backend in BACKENDS]
        ranks = max(entry.ranks for entry in entries if entry is not None)
        lines.append(f"| `{test}` | {ranks} | {_word(entries[0])} | {_word(entries[1])} |")
    return "\n".join([*lines, ""])


def _word(entry: Entry | None) -> str:
    if entry is None:
        return "not run"
    again = " the second time" if entry.verdict == PASSED and entry.attempts > 1 else ""
    return _WORDS[entry.verdict] + again


def _skipped(results: Results, tests: list[str]) -> str:
    by_reason = defaultdict(list)
    for test in tests:
        entry = next(iter(results.entries[test].values()))
        by_reason[_reason_of_skip(entry.reason)].append(test.partition(".test_")[2])
    lines = ["## Tests that PyTorch skips with both", ""]
    for reason, skipped in sorted(by_reason.items()):
        listed = ", ".join(f"`{name}`" for name in skipped)
        lines += [f"**{reason}** ({len(skipped)}): {listed}.", ""]
    return "\n".join(lines)


def _reason_of_skip(reason: str) -> str:
    fitting = [words for pattern, words in _SKIPS if pattern.search(reason)]
    return fitting[0] if fitting else reason.rstrip(".").capitalize()
