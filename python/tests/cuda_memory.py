"""Memory, streams and gates of a CUDA device by calls of the driver, and objects that lend such memory."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np

_PORTABLE = 1
_AT_LEAST = 0
_NON_BLOCKING = 1
_CUDA = 2
_CODES = {"i": 0, "u": 1, "f": 2}

CAPTURE_MODES = {"global": 0, "thread local": 1, "relaxed": 2}
"""Whom a capture forbids to wait, to look at events, to allocate: all threads, its own, nobody."""


def _succeed(result: int) -> None:
    assert result == 0, f"the driver says {result}"


class Device:
    """A device whose primary context is current in this thread."""

    def __init__(self, ordinal: int = 0) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        _succeed(self.driver.cuInit(0))
        _succeed(self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal))
        _succeed(self.driver.cuCtxSetCurrent(context))
        self.ordinal = ordinal

    def neighbours(self) -> int:
        """How many devices there are besides."""
        count = ctypes.c_int()
        _succeed(self.driver.cuDeviceGetCount(ctypes.byref(count)))
        return count.value - 1

    def stream(self) -> int:
        """The handle of a new stream that waits for no other."""
        handle = ctypes.c_void_p()
        _succeed(self.driver.cuStreamCreate(ctypes.byref(handle), _NON_BLOCKING))
        assert handle.value is not None
        return handle.value

    def synchronise(self, stream: int) -> None:
        _succeed(self.driver.cuStreamSynchronize(ctypes.c_void_p(stream)))

    @contextlib.contextmanager
    def capture(self, stream: int, mode: str) -> Iterator[None]:
        """What is put on the stream becomes part of a graph, which nobody runs; fails if that comes to nothing."""
        handle, graph = ctypes.c_void_p(stream), ctypes.c_void_p()
        _succeed(self.driver.cuStreamBeginCapture_v2(handle, CAPTURE_MODES[mode]))
        yield
        _succeed(self.driver.cuStreamEndCapture(handle, ctypes.byref(graph)))

    def is_idle(self, stream: int) -> bool:
        return bool(self.driver.cuStreamQuery(ctypes.c_void_p(stream)) == 0)

    def pinned(self, values: Any) -> Any:
        """A copy of an array that streams can read by themselves."""
        memory = ctypes.c_void_p()
        size = ctypes.c_size_t(max(values.nbytes, 1))
        _succeed(self.driver.cuMemHostAlloc(ctypes.byref(memory), size, _PORTABLE))
        assert memory.value is not None
        raw = (ctypes.c_uint8 * max(values.nbytes, 1)).from_address(memory.value)
        copy = np.frombuffer(raw, values.dtype, values.size)
        copy[:] = values
        return copy


class Gate:
    """Holds streams until it is opened."""

    def __init__(self, device: Device) -> None:
        self._driver = device.driver
        self._word = device.pinned(np.zeros(1, np.uint32))

    def hold(self, stream: int) -> None:
        address = ctypes.c_uint64(self._word.ctypes.data)
        handle, one = ctypes.c_void_p(stream), ctypes.c_uint32(1)
        _succeed(self._driver.cuStreamWaitValue32_v2(handle, address, one, _AT_LEAST))

    def open(self) -> None:
        self._word[0] = 1


class Array:
    """An array on a device, with ``__cuda_array_interface__``."""

    def __init__(self, device: Device, values: Any, **changes: Any) -> None:
        self.device, self.dtype, self.shape = device, values.dtype, values.shape
        self.nbytes, self._changes = values.nbytes, changes
        address = ctypes.c_uint64()
        size = ctypes.c_size_t(max(values.nbytes, 1))
        _succeed(device.driver.cuMemAlloc_v2(ctypes.byref(address), size))
        self.address = address.value
        self.copy_in(np.ascontiguousarray(values))

    def copy_in(self, values: Any, stream: int | None = None) -> None:
        """Replaces the values, in the order of a stream if one is given."""
        to, start = ctypes.c_uint64(self.address), ctypes.c_void_p(values.ctypes.data)
        size, driver = ctypes.c_size_t(values.nbytes), self.device.driver
        if values.nbytes == 0:
            return
        if stream is None:
            _succeed(driver.cuMemcpyHtoD_v2(to, start, size))
        else:
            _succeed(driver.cuMemcpyHtoDAsync_v2(to, start, size, ctypes.c_void_p(stream)))

    def values(self) -> Any:
        """What is there now."""
        result = np.empty(self.shape, self.dtype)
        if self.nbytes > 0:
            start = ctypes.c_void_p(result.ctypes.data)
            size, address = ctypes.c_size_t(self.nbytes), ctypes.c_uint64(self.address)
            _succeed(self.device.driver.cuMemcpyDtoH_v2(start, address, size))
        return result

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        described = {
            "version": 3,
            "shape": self.shape,
            "typestr": np.dtype(self.dtype).str,
            "data": (self.address, False),
            "strides": None,
            "stream": None,
        }
        return {**described, **self._changes}


class _Description(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [
        ("description", _Description),
        ("context", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
    ]


# What was lent and not given back, by the address of its description.
_LENT: dict[int, Any] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _release(managed: int) -> None:
    del _LENT[managed]


class Tensor:
    """The memory of an array, lent by DLPack; remembers which stream it was told."""

    def __init__(self, array: Array, kind: int = _CUDA) -> None:
        self.array, self.kind = array, kind
        self.told: list[Any] = []

    def values(self) -> Any:
        return self.array.values()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.kind, self.array.device.ordinal)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        if stream == 0:
            raise ValueError("0 is no stream of CUDA: it might mean either default stream")
        self.told.append(stream)
        dtype = np.dtype(self.array.dtype)
        shape = (ctypes.c_int64 * len(self.array.shape))(*self.array.shape)
        description = _Description(
            self.array.address,
            self.kind,
            self.array.device.ordinal,
            len(self.array.shape),
            _CODES[dtype.kind],
            8 * dtype.itemsize,
            1,
            ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
            None,
            0,
        )
        managed = _Managed(description, None, ctypes.cast(_release, ctypes.c_void_p))
        _LENT[ctypes.addressof(managed)] = (managed, shape, self.array)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(managed), b"dltensor", None)
