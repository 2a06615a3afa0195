"""Calls on memory of CUDA devices: an imitation of the driver, or a real one, whose folder the environment names."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import worlds
from cuda_memory import CAPTURE_MODES, Array, Device, Gate, Tensor

import r2ccl

DRIVER = os.environ.get("CCL_TEST_CUDA_DRIVER")
"""A folder with ``libcuda.so.1``, or nothing where the loader finds one: a real driver."""

COUNT = 3000

needs_driver = pytest.mark.skipif(
    DRIVER is None, reason="CCL_TEST_CUDA_DRIVER names no folder with a driver"
)


def run(function: Callable[..., Any], size: int, *arguments: Any) -> list[Any]:
    """`worlds.run`, where ranks find the driver."""
    before = dict(os.environ)
    assert DRIVER is not None
    if DRIVER:
        os.environ.update(LD_LIBRARY_PATH=DRIVER, FAKECUDA_DEVICES="2")
    try:
        return worlds.run(function, size, *arguments)
    finally:
        os.environ.clear()
        os.environ.update(before)


def own(communicator: r2ccl.Communicator, count: int = COUNT) -> Any:
    return np.arange(count, dtype=np.float32) % 17 + communicator.rank


def total(communicator: r2ccl.Communicator, count: int = COUNT) -> Any:
    size = communicator.size
    return (np.arange(count, dtype=np.float32) % 17) * size + size * (size - 1) // 2


def collectives(communicator: r2ccl.Communicator, lender: str) -> None:
    device = Device()
    stream = device.stream()
    rank, size = communicator.rank, communicator.size

    def on_device(values: Any) -> Any:
        array = Array(device, values)
        return Tensor(array) if lender == "dlpack" else array

    def check(name: str, inputs: list[Any], **options: Any) -> None:
        """The same call on the host and on the device."""
        there = [None if one is None else on_device(one) for one in inputs]
        getattr(communicator, name)(*inputs, **options)
        assert getattr(communicator, name)(*there, stream=stream, **options) is None
        device.synchronise(stream)
        for host, other in zip(inputs, there, strict=True):
            if host is not None and isinstance(host, np.ndarray):
                np.testing.assert_array_equal(other.values(), host, name)

    one, many = own(communicator, 60), own(communicator, 60 * size)
    for dtype in (np.float32, np.float64, np.float16, np.int8, np.uint8, np.int32, np.int64):
        check("all_reduce", [one.astype(dtype)])
    check("all_reduce", [one, np.zeros_like(one)], op=r2ccl.ReduceOp.MAX)
    check("all_reduce", [one.reshape(3, 20)], op=r2ccl.ReduceOp.AVG)
    check("all_reduce", [one[:0].copy()])
    check("all_gather", [one, np.zeros_like(many)])
    check("all_gather", [many.copy()])
    check("reduce_scatter", [many, np.zeros_like(one)])
    check("all_to_all", [many, np.zeros_like(many)])
    check("broadcast", [one.copy()], root=size - 1)
    check("reduce", [one, np.zeros_like(one) if rank == 0 else None], root=0)
    check("gather", [one, np.zeros_like(many) if rank == 1 else None], root=1)
    check("scatter", [many if rank == 1 else None, np.zeros_like(one)], root=1)
    sent = [rank + other + 1 for other in range(size)]
    ragged = own(communicator, sum(sent))
    there = [on_device(ragged), on_device(np.zeros_like(ragged))]
    result = np.zeros_like(ragged)
    communicator.all_to_all_v(ragged, result, sent, sent)
    communicator.all_to_all_v(*there, sent, sent, stream=stream)
    # Both directions at once.
    following, previous = (rank + 1) % size, (rank - 1) % size
    message, received = on_device(own(communicator)), on_device(np.zeros(COUNT, np.float32))
    with r2ccl.Group():
        communicator.send(message, following, stream=stream)
        communicator.recv(received, previous, stream=stream)
    communicator.barrier(stream=stream)
    device.synchronise(stream)
    np.testing.assert_array_equal(there[1].values(), result)
    expected = np.arange(COUNT, dtype=np.float32) % 17 + previous
    np.testing.assert_array_equal(received.values(), expected)


@needs_driver
@pytest.mark.parametrize("lender", ["dlpack", "interface"])
@pytest.mark.parametrize("size", [2, 3])
def test_collectives_are_those_of_the_host(lender: str, size: int) -> None:
    run(collectives, size, lender)


def order(communicator: r2ccl.Communicator) -> None:
    device = Device()
    stream, gate = device.stream(), Gate(device)
    contribution = device.pinned(own(communicator))
    array = Array(device, np.zeros(COUNT, np.float32))
    gate.hold(stream)
    array.copy_in(contribution, stream)
    communicator.all_reduce(array, stream=stream)
    # The call has returned, and its stream has not come to it.
    assert not device.is_idle(stream)
    gate.open()
    device.synchronise(stream)
    np.testing.assert_array_equal(array.values(), total(communicator))
    assert communicator.async_error is None


@needs_driver
def test_calls_are_in_the_order_of_their_stream() -> None:
    run(order, 2)


class Wrapped:
    """A stream as other libraries have it."""

    def __init__(self, name: str, handle: int) -> None:
        if name == "__cuda_stream__":
            self.__class__ = _Protocol
            self.handle = handle
        else:
            setattr(self, name, handle)


class _Protocol(Wrapped):
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)


def streams(communicator: r2ccl.Communicator) -> None:
    device = Device()
    stream = device.stream()
    for name in ("__cuda_stream__", "cuda_stream", "ptr"):
        array = Array(device, own(communicator))
        communicator.all_reduce(array, stream=Wrapped(name, stream))
        device.synchronise(stream)
        np.testing.assert_array_equal(array.values(), total(communicator))
    # The default stream: none named, and the numbers that stand for it.
    for default, lend in itertools.product((None, 0, 1), (lambda array: array, Tensor)):
        array = Array(device, own(communicator))
        communicator.all_reduce(lend(array), stream=default)
        device.synchronise(0)
        np.testing.assert_array_equal(array.values(), total(communicator))
    # An object of DLPack is told on which stream it will be used.
    tensor = Tensor(Array(device, own(communicator)))
    for named in (stream, None, 0, 1):
        communicator.all_reduce(tensor, stream=named)
    assert tensor.told == [stream, 1, 1, 1]
    with pytest.raises(TypeError, match="stream is a str"):
        communicator.all_reduce(tensor, stream="one")


@needs_driver
def test_streams_can_be_named_in_several_ways() -> None:
    run(streams, 2)


def producers(communicator: r2ccl.Communicator) -> None:
    device = Device()
    stream, other, gate = device.stream(), device.stream(), Gate(device)
    contribution = device.pinned(own(communicator))
    array = Array(device, np.zeros(COUNT, np.float32), stream=other)
    gate.hold(other)
    array.copy_in(contribution, other)
    # What the object says about its stream holds the call up.
    communicator.all_reduce(array, stream=stream)
    assert not device.is_idle(stream)
    gate.open()
    device.synchronise(stream)
    np.testing.assert_array_equal(array.values(), total(communicator))


@needs_driver
def test_a_call_waits_for_the_stream_that_an_object_names() -> None:
    run(producers, 2)


def lives(communicator: r2ccl.Communicator) -> None:
    device = Device()
    stream, gate = device.stream(), Gate(device)
    array = Array(device, own(communicator))
    communicator.all_reduce(array, stream=stream)
    device.synchronise(stream)
    gate.hold(stream)
    communicator.all_reduce(array, stream=stream)
    alive = weakref.ref(array)
    del array
    gc.collect()
    assert alive() is not None
    gate.open()
    device.synchronise(stream)
    # The next call sees that it is over.
    communicator.all_reduce(Array(device, own(communicator)), stream=stream)
    gc.collect()
    assert alive() is None


@needs_driver
def test_objects_are_kept_until_the_stream_has_come_past_the_call() -> None:
    run(lives, 2)


def refused(communicator: r2ccl.Communicator) -> None:
    device = Device()
    array = Array(device, own(communicator))
    host = own(communicator)
    wrong: list[tuple[str, Callable[[], Any]]] = [
        ("both", lambda: communicator.all_reduce(array, host)),
        ("both", lambda: communicator.all_reduce(host, array)),
        ("stream is for memory", lambda: communicator.all_reduce(host, stream=device.stream())),
        ("not C-contiguous", lambda: communicator.all_reduce(
            Array(device, host.reshape(30, 100), strides=(4, 120)))),
        ("read-only", lambda: communicator.all_reduce(
            Array(device, host, data=(array.address, True)))),
        ("mask", lambda: communicator.all_reduce(Array(device, host, mask=array))),
        ("stream is 0", lambda: communicator.all_reduce(Array(device, host, stream=0))),
        ("complex|typestr|c8", lambda: communicator.all_reduce(Array(device, host, typestr="<c8"))),
        ("rocm:0", lambda: communicator.all_reduce(Tensor(array, kind=10))),
        ("memory of the host|not known to the driver", lambda: communicator.all_reduce(
            Array(device, host, data=(host.ctypes.data, False)))),
    ]
    for text, call in wrong:
        with pytest.raises(r2ccl.InvalidArgumentError, match=text):
            call()
    with pytest.raises(r2ccl.InvalidUsageError, match="return at once"):
        communicator.all_reduce(array, async_op=True)
    with pytest.raises(r2ccl.InvalidUsageError, match="two groups"), r2ccl.Group():
        communicator.broadcast(array)
        communicator.broadcast(host)
    # What of such a group is on another communicator does not begin either.
    part = communicator.split(0)
    assert part is not None
    with pytest.raises(r2ccl.InvalidUsageError, match="two groups"), r2ccl.Group():
        part.all_reduce(array)
        communicator.broadcast(array)
        communicator.broadcast(host)
    part.destroy()
    communicator.all_reduce(array)
    device.synchronise(0)
    np.testing.assert_array_equal(array.values(), total(communicator))


@needs_driver
def test_what_is_impossible_is_refused_and_nothing_happens() -> None:
    run(refused, 2)


def elsewhere(communicator: r2ccl.Communicator) -> bool:
    device = Device()
    array, host = Array(device, own(communicator)), own(communicator)
    if device.neighbours() == 0:
        return False
    # The device of a communicator is that of its first call.
    communicator.all_reduce(array)
    other = Device(1)
    with pytest.raises(r2ccl.InvalidArgumentError, match="device 1"):
        communicator.all_reduce(Array(other, host))
    with pytest.raises((r2ccl.InvalidArgumentError, r2ccl.CudaError), match="device 1"):
        communicator.all_reduce(Array(other, host), stream=other.stream())
    Device(0)
    communicator.all_reduce(array)
    device.synchronise(0)
    size = communicator.size
    np.testing.assert_array_equal(array.values(), total(communicator) * size)
    return True


@needs_driver
def test_another_device_is_refused() -> None:
    if not all(run(elsewhere, 2)):
        pytest.skip("there is one CUDA device only")


def failing(communicator: r2ccl.Communicator) -> str:
    device = Device()
    stream = device.stream()
    array = Array(device, own(communicator))
    communicator.all_reduce(array, stream=stream)
    device.synchronise(stream)
    if communicator.rank == 1:
        communicator.abort("on purpose")
    else:
        # The abort may have come already.
        with contextlib.suppress(r2ccl.AbortedError):
            communicator.all_reduce(array, stream=stream)
        # The stream goes on.
        device.synchronise(stream)
        while communicator.async_error is None:
            pass
    assert isinstance(communicator.async_error, r2ccl.AbortedError)
    with pytest.raises(r2ccl.AbortedError) as caught:
        communicator.all_reduce(array, stream=stream)
    return str(caught.value)


@needs_driver
def test_an_abort_ends_calls_and_streams_go_on() -> None:
    for message in run(failing, 2):
        assert "on purpose" in message


def captured(communicator: r2ccl.Communicator, mode: str) -> None:
    device = Device()
    stream = device.stream()
    array, received = Array(device, own(communicator)), Array(device, own(communicator))
    following = (communicator.rank + 1) % communicator.size
    previous = (communicator.rank - 1) % communicator.size

    def exchange() -> None:
        with r2ccl.Group():
            communicator.send(array, following, stream=stream)
            communicator.recv(received, previous, stream=stream)

    calls: list[Callable[[], Any]] = [
        lambda: communicator.all_reduce(array, stream=stream),
        lambda: communicator.broadcast(array, stream=stream),
        lambda: communicator.barrier(stream=stream),
        exchange,
    ]
    # Before the communicator has a device, and after.
    for _ in range(2):
        for call in calls:
            with (
                device.capture(stream, mode),
                pytest.raises(r2ccl.InvalidUsageError, match="captured into a graph"),
            ):
                call()
        communicator.barrier(stream=stream)
    # Nothing has happened.
    communicator.all_reduce(array, stream=stream)
    device.synchronise(stream)
    np.testing.assert_array_equal(array.values(), total(communicator))


@needs_driver
@pytest.mark.parametrize("mode", CAPTURE_MODES)
def test_a_call_cannot_be_captured(mode: str) -> None:
    run(captured, 2, mode)


def beside_a_capture(communicator: r2ccl.Communicator) -> None:
    device = Device()
    stream, other, gate = device.stream(), device.stream(), Gate(device)
    communicator.all_reduce(Array(device, own(communicator)), stream=stream)
    device.synchronise(stream)
    array, last = (Array(device, own(communicator)) for _ in range(2))
    gate.hold(stream)
    communicator.all_reduce(array, stream=stream)
    alive = weakref.ref(array)
    del array
    with ThreadPoolExecutor(1) as executor, device.capture(other, "global"):
        executor.submit(communicator.all_reduce, last, stream=stream).result()
    gc.collect()
    assert alive() is not None
    gate.open()
    device.synchronise(stream)
    np.testing.assert_array_equal(last.values(), total(communicator))


@needs_driver
def test_a_call_beside_a_capture_of_another_thread() -> None:
    run(beside_a_capture, 2)


def finalized(communicator: r2ccl.Communicator) -> None:
    device = Device()
    stream = device.stream()
    array = Array(device, own(communicator))
    communicator.all_reduce(array, stream=stream)
    communicator.finalize()
    device.synchronise(stream)
    np.testing.assert_array_equal(array.values(), total(communicator))


@needs_driver
def test_the_end_waits_for_calls_on_streams() -> None:
    run(finalized, 2)


_PLACES = itertools.count(1)


class Nowhere:
    """Says that it is memory of a device."""

    def __init__(self) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (4,),
            "typestr": "<f4",
            "data": (4096 * next(_PLACES), False),
            "stream": None,
        }


def test_without_a_driver_the_error_says_so() -> None:
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("there is a driver")
    with worlds.alone() as communicator:
        own, other = Nowhere(), Nowhere()
        calls: list[Callable[[], Any]] = [
            lambda: communicator.all_reduce(own),
            lambda: communicator.all_gather(own, other),
            lambda: communicator.reduce_scatter(own, other),
            lambda: communicator.broadcast(own),
            lambda: communicator.reduce(own, other),
            lambda: communicator.all_to_all(own, other),
            lambda: communicator.all_to_all_v(own, other, [4], [4]),
            lambda: communicator.gather(own, other),
            lambda: communicator.scatter(own, other),
            lambda: communicator.send(own, 0),
            lambda: communicator.recv(own, 0),
            lambda: communicator.barrier(stream=1),
        ]
        for call in calls:
            with pytest.raises(r2ccl.CudaError, match="no CUDA driver"):
                call()
            with pytest.raises(r2ccl.CudaError, match="no CUDA driver"), r2ccl.Group():
                call()
        values = np.ones(4, np.float32)
        communicator.all_reduce(values)
        assert (values == 1).all()
