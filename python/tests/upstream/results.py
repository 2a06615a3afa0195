"""What is known about the tests so far: a file that grows while they run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

PASSED = "passed"
SKIPPED = "skipped"
FAILED = "failed"
TIMEOUT = "timeout"


@dataclass(frozen=True)
class Entry:
    """How one test ended with one backend.

    Attributes:
        verdict: PASSED, SKIPPED, FAILED or TIMEOUT.
        reason: why it did not pass.
        ranks: how many it was started with.
        seconds: how long it took.
        attempts: how often it was run until it passed, or was given up.
    """

    verdict: str
    reason: str
    ranks: int
    seconds: float
    attempts: int


@dataclass
class Results:
    """Outcomes by test and backend, and what they are about.

    Attributes:
        about: versions, in words.
        entries: by test, then by backend.
    """

    about: str = ""
    entries: dict[str, dict[str, Entry]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """From a file that :meth:`write` has made; nothing if there is none."""
        if not path.exists():
            return cls()
        content = json.loads(path.read_text())
        entries = {
            test: {backend: Entry(**entry) for backend, entry in by_backend.items()}
            for test, by_backend in content["entries"].items()
        }
        return cls(content["about"], entries)

    def write(self, path: Path) -> None:
        """Replaces a file; whoever reads it sees the old one or the new one."""
        entries = {
            test: {backend: asdict(entry) for backend, entry in sorted(by_backend.items())}
            for test, by_backend in sorted(self.entries.items())
        }
        made = path.with_name(path.name + ".new")
        made.write_text(json.dumps({"about": self.about, "entries": entries}, indent=1) + "\n")
        made.replace(path)

    def add(self, test: str, backend: str, entry: Entry) -> None:
        """Remembers an outcome, in place of an older one."""
        self.entries.setdefault(test, {})[backend] = entry

    def get(self, test: str, backend: str) -> Entry | None:
        """The outcome of a test, if it was run."""
        return self.entries.get(test, {}).get(backend)
