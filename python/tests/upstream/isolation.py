"""Runs one test in a process of its own, with all that it starts, and ends all of it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import select
import signal
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from results import FAILED, PASSED, SKIPPED, TIMEOUT

_RESULT = "result.json"
_OUTPUT = "output"
_LONGEST_REASON = 300
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit)\b.*")
_ERROR_OF_A_RANK = re.compile(r"^RuntimeError: Process \d+ exited with error code")


@dataclass(frozen=True)
class Outcome:
    """How a test ended.

    Attributes:
        verdict: as in :mod:`results`.
        reason: one line that says why, if it did not pass.
        seconds: how long it took.
        output: everything that it and its ranks printed.
    """

    verdict: str
    reason: str
    seconds: float
    output: str

    def is_failure(self) -> bool:
        """Whether it neither passed nor was skipped."""
        return self.verdict in (FAILED, TIMEOUT)


def run(test: unittest.TestCase, prepare: Callable[[], None], limit: float) -> Outcome:
    """Runs a test, and kills what is left of it.

    Args:
        prepare: called first, in the new process.
        limit: seconds that the test may take.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="upstream-") as folder:
        scratch = Path(folder)
        process = os.fork()
        if process == 0:
            _be_the_test(test, prepare, scratch)
        try:
            ended = _wait(process, limit)
        finally:
            _kill_group(process)
        verdict, reason = _read(scratch) if ended else (TIMEOUT, f"not done after {limit:.0f} s")
        output = (scratch / _OUTPUT).read_text(errors="replace")
    return Outcome(verdict, reason, time.monotonic() - began, output)


def _wait(process: int, limit: float) -> bool:
    """Whether the process ended by itself within the limit; does not reap it."""
    watched = os.pidfd_open(process)
    try:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        return bool(poll.poll(limit * 1000))
    finally:
        os.close(watched)


def _kill_group(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)


def _read(scratch: Path) -> tuple[str, str]:
    try:
        verdict, reason = json.loads((scratch / _RESULT).read_text())
    except FileNotFoundError:
        return FAILED, "the process of the test died"
    return verdict, reason


def _be_the_test(test: unittest.TestCase, prepare: Callable[[], None], scratch: Path) -> NoReturn:
    """The whole life of the new process."""
    try:
        os.setpgid(0, 0)
        _redirect(scratch / _OUTPUT)
        tempfile.tempdir = os.environ["TMPDIR"] = str(scratch)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        prepare()
        (scratch / _RESULT).write_text(json.dumps(_judge(test)))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _redirect(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _judge(test: unittest.TestCase) -> tuple[str, str]:
    result = unittest.TextTestRunner(stream=io.StringIO()).run(unittest.TestSuite([test]))
    failures = [why for _, why in [*result.errors, *result.failures]]
    if failures:
        print(*failures, sep="\n")
        return FAILED, _shortest(failures[0])
    skips = [why for _, why in result.skipped]
    return (SKIPPED, skips[0]) if skips else (PASSED, "")


def _shortest(why: str) -> str:
    """The line of a traceback that says most: what the first rank raised, if that is known."""
    lines = [
        line
        for line in why.splitlines()
        if _EXCEPTION.match(line) and not _ERROR_OF_A_RANK.match(line)
    ]
    return (lines or why.splitlines())[0][:_LONGEST_REASON]
