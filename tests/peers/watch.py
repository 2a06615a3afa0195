"""Whether the processors are near each other or far, all the while something is measured.

A virtual machine's processors may share a cache now and be on two chips a minute later: then small messages take several times
as long, and large ones half as long. Times are comparable if both were taken in the same state.
"""

import os
import statistics
import subprocess
import threading
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "distance.c"
PERIOD = 0.1  # Seconds between probes.
# Nanoseconds that a cache line takes: what takes longer comes from far. On Zen 5 it is 35 to 65 near, and 100 to 120 or 180 to
# 220 far, where memory is twice as fast in both cases.
FAR_FROM = 85


def state(nanoseconds):
    """The name of a state of the machine; None where it is not known."""
    if nanoseconds is None:
        return None
    return "far" if nanoseconds > FAR_FROM else "near"


class Watch:
    """A program that probes the first two processors again and again."""

    def __init__(self, folder):
        """Compiles and starts it. An OSError or a CalledProcessError says that it cannot."""
        program = str(folder / "distance")
        subprocess.run(["gcc", "-O3", "-Wall", "-Wextra", "-o", program, str(SOURCE), "-lpthread"], check=True)
        processors = sorted(os.sched_getaffinity(0))[:2]
        if len(processors) < 2:
            raise OSError("there is one processor only")
        self.probes = []
        command = [program, *map(str, processors), str(PERIOD)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        first = self.process.stdout.readline()
        if not first:
            raise OSError(self.process.communicate()[1].strip())
        self.note(first)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        """Keeps what the program prints."""
        for line in self.process.stdout:
            self.note(line)

    def note(self, line):
        """Keeps a line: a time of `time.monotonic`, and nanoseconds."""
        at, nanoseconds = map(float, line.split())
        self.probes.append((at, nanoseconds))

    def between(self, begin, end):
        """Nanoseconds while something was measured, see `between`."""
        return between(list(self.probes), begin, end)

    def close(self):
        """Ends the program."""
        self.process.kill()
        self.process.wait()


def between(probes, begin, end):
    """The median of the probes from a period before `begin` to one after `end`; None without one, and where they tell of more
    than one state."""
    values = [nanoseconds for at, nanoseconds in probes if begin - PERIOD <= at <= end + PERIOD]
    if len({state(nanoseconds) for nanoseconds in values}) != 1:
        return None
    return statistics.median(values)
