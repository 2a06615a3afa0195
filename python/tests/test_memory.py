"""Memory that the ranks of a host reach in place."""

from __future__ import annotations

import gc
import os
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import worlds

import r2ccl

COUNT = 1 << 20


def mapped_bytes() -> int:
    """How much memory of the library this process has, as the system says."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:r2ccl-memory" in line:
            low, high = line.split()[0].split("-")
            total += int(high, 16) - int(low, 16)
    return total


def test_memory_lives_as_long_as_what_looks_into_it() -> None:
    before = mapped_bytes()
    view = r2ccl.mem_alloc(4 * COUNT)
    assert (view.nbytes, view.format, view.readonly) == (4 * COUNT, "B", False)
    assert mapped_bytes() >= before + 4 * COUNT
    values = np.frombuffer(view, np.float32)[3:]
    del view
    gc.collect()
    assert not values.any(), "it is zeroed"
    values[:] = 7
    assert mapped_bytes() >= before + 4 * COUNT
    assert (values == 7).all()
    del values
    gc.collect()
    assert mapped_bytes() == before


def test_memory_is_cast() -> None:
    values = r2ccl.mem_alloc(12).cast("i")
    values[2] = 5
    assert values.tolist() == [0, 0, 5]


@pytest.mark.parametrize("nbytes", [0, -1])
def test_no_memory_is_refused(nbytes: int) -> None:
    with pytest.raises(r2ccl.InvalidArgumentError, match=f"nbytes is {nbytes}"):
        r2ccl.mem_alloc(nbytes)


def test_more_memory_than_there_is() -> None:
    with pytest.raises(r2ccl.OperatingSystemError, match="allocate shared memory"):
        r2ccl.mem_alloc(1 << 60)


def test_a_child_leaves_memory_to_its_parent() -> None:
    values = np.frombuffer(r2ccl.mem_alloc(8), np.int64)
    child = os.fork()
    if child == 0:
        del values
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    values[0] = 1
    assert values[0] == 1


def memory_of_all_kinds(communicator: r2ccl.Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    own = np.frombuffer(r2ccl.mem_alloc(4 * COUNT), np.float32)
    segment = shared_memory.SharedMemory(create=True, size=4 * COUNT)
    foreign: Any = np.frombuffer(segment.buf, np.float32, COUNT)
    ordinary = np.empty(COUNT, np.float32)
    kinds = [(own, True), (foreign, True), (ordinary, False)]
    registrations = []
    for values, is_shared in kinds:
        registration = communicator.register(values)
        registrations.append(registration)
        assert registration.is_shared == is_shared
        for step in range(3):
            values[:] = np.arange(COUNT) % 1000 + rank + step
            communicator.all_reduce(values)
            expected = size * (np.arange(COUNT) % 1000 + step) + size * (size - 1) / 2
            assert (values == expected).all()
    for registration in registrations:
        registration.deregister()
        registration.deregister()
    # Nobody holds it any more, so it can be unmapped.
    del foreign, values, kinds
    gc.collect()
    segment.close()
    segment.unlink()


@pytest.mark.parametrize("size", [2, 3])
def test_memory_of_all_kinds(size: int) -> None:
    worlds.run(memory_of_all_kinds, size)


def test_registered_buffers_live_until_they_are_deregistered() -> None:
    with worlds.alone() as communicator:
        buffer = bytearray(16)
        registration = communicator.register(buffer)
        with pytest.raises(BufferError):
            buffer.append(0)
        registration.deregister()
        buffer.append(0)
        last = communicator.register(buffer)
        del registration
    buffer.append(0)
    last.deregister()


def test_what_cannot_be_registered() -> None:
    with worlds.alone() as communicator:
        with pytest.raises(r2ccl.InvalidArgumentError, match="0 bytes"):
            communicator.register(bytearray())
        with pytest.raises(TypeError, match="buffer is a list"):
            communicator.register([1])  # type: ignore[arg-type]
    with pytest.raises(r2ccl.InvalidUsageError, match="destroyed"):
        communicator.register(bytearray(8))
