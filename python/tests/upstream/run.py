"""Runs PyTorch's own distributed tests with the backend of this package, and with Gloo.

    python run.py --json results.json                  # both backends; continue with --resume
    python run.py --backend r2ccl --only all_reduce    # some of them
    python run.py --json results.json --table page.md  # writes what is known; runs nothing

Ends with status 1 if a test did not end as :mod:`expected` says.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import expected
import isolation
import page
from results import Entry, Results

BACKENDS = ("gloo", "r2ccl")
_GRACE_SECONDS = 15.0


def main() -> int:
    """Does what the arguments say; returns the exit status."""
    options = _options()
    results = Results.read(options.json) if options.json else Results()
    if options.table:
        options.table.write_text(page.page(results))
        return 0
    # What is under way is ended, then this process.
    signal.signal(signal.SIGTERM, _stop)
    os.environ["WORLD_SIZE"] = str(options.world_size)
    surprises = list(_run_all(options, results))
    for surprise in surprises:
        print(surprise)
    return 1 if surprises else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", choices=BACKENDS, help="one backend; else both")
    parser.add_argument("--only", default="", metavar="REGEX", help="tests with such names")
    parser.add_argument("--world-size", type=int, default=4, metavar="N", help="ranks (4)")
    parser.add_argument(
        "--large-world-size",
        type=int,
        default=8,
        metavar="N",
        help="ranks of tests that are skipped with few, at least 8 (8)",
    )
    parser.add_argument(
        "--limit", type=float, default=120.0, metavar="SECONDS", help="per test (120)"
    )
    parser.add_argument("--attempts", type=int, default=2, help="for tests that do not pass (2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="adds the outcomes to FILE")
    parser.add_argument("--resume", action="store_true", help="runs only what FILE does not have")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keeps the output of tests")
    parser.add_argument("--table", type=Path, metavar="FILE", help="writes the page, runs nothing")
    options = parser.parse_args()
    if (options.resume or options.table) and not options.json:
        parser.error("--resume and --table need --json")
    if options.limit <= 2 * _GRACE_SECONDS:
        parser.error(f"--limit must be more than {2 * _GRACE_SECONDS:.0f} s")
    return options


def _stop(_signal: int, _frame: object) -> NoReturn:
    raise SystemExit("stopped")


def _compile_backend(chosen: str | None) -> None:
    """Before any test has a deadline."""
    if chosen == "gloo":
        return
    from r2ccl.torch import build

    build.compiled()


def _about() -> str:
    import torch

    return f"PyTorch {torch.__version__}, Python {platform.python_version()}"


def _run_all(options: argparse.Namespace, results: Results) -> Iterator[str]:
    """Runs what is asked for; yields a line for each test that did not end as expected."""
    # Not before the environment says how many ranks there are.
    import suites

    results.about = _about()
    _compile_backend(options.backend)
    suites.limit_tests(options.limit - _GRACE_SECONDS)
    tests = suites.names(re.compile(options.only).search)
    backends = [options.backend] if options.backend else BACKENDS
    for number, test in enumerate(tests, 1):
        for backend in backends:
            entry = results.get(test, backend) if options.resume else None
            if entry is None:
                entry = _run(options, test, backend)
                results.add(test, backend, entry)
                if options.json:
                    results.write(options.json)
                line = f"{number}/{len(tests)} {backend} {test}: {entry.verdict} {entry.reason}"
                print(line, flush=True)
            surprise = expected.surprise(test, backend, entry.verdict)
            if surprise:
                yield surprise


def _run(options: argparse.Namespace, test: str, backend: str) -> Entry:
    """Runs one test until it passes, but not for ever."""
    import suites

    ranks, attempt = options.world_size, 1
    while True:
        os.environ["WORLD_SIZE"] = str(ranks)
        case = suites.instance(test)
        outcome = isolation.run(case, lambda: suites.choose_backend(backend), options.limit)
        if options.logs:
            _keep(options.logs / backend / f"{test}.log", outcome.output)
        if outcome.reason == suites.SMALL_WORLD and ranks < options.large_world_size:
            ranks = options.large_world_size
        elif outcome.is_failure() and attempt < options.attempts:
            attempt += 1
        else:
            ranks = int(case.world_size)
            return Entry(outcome.verdict, outcome.reason, ranks, round(outcome.seconds, 1), attempt)


def _keep(path: Path, output: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(output)


if __name__ == "__main__":
    sys.exit(main())
