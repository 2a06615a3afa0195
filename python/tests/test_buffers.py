"""Everything that lends its memory can be a buffer, without a copy."""

from __future__ import annotations

import array
import mmap
import weakref
from typing import Any

import numpy as np
import pytest
import worlds

import r2ccl


class Lender:
    """A tensor that knows DLPack only: the older way, whose method takes no arguments."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()

    def __dlpack__(self) -> Any:
        return self.values.__dlpack__()


class VersionedLender(Lender):
    """The newer way."""

    def __dlpack__(self, *, max_version: tuple[int, int], copy: bool | None = None) -> Any:
        if np.lib.NumpyVersion(np.__version__) < "2.1.0":
            pytest.skip("this NumPy has no versions of DLPack")
        return self.values.__dlpack__(max_version=max_version, copy=copy)


def filled(communicator: r2ccl.Communicator, buffer: Any, values: Any) -> None:
    """Receives the values into the buffer."""
    with r2ccl.Group():
        communicator.send(values, 0)
        communicator.recv(buffer, 0)


@pytest.mark.parametrize("kind", [Lender, VersionedLender])
@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int32", "uint64", "float16", "float64", "bool"]
)
def test_tensors_are_used_in_place(kind: type[Lender], dtype: str) -> None:
    values = np.zeros((3, 4), dtype)
    with worlds.alone() as communicator:
        filled(communicator, kind(values), np.ones((3, 4), dtype))
        communicator.all_reduce(kind(values), op=r2ccl.ReduceOp.MAX)
    assert (values == 1).all()


def test_tensors_are_given_back() -> None:
    values = np.zeros(4).view(type("Watched", (np.ndarray,), {}))
    lives = weakref.ref(values)
    with worlds.alone() as communicator:
        communicator.all_reduce(Lender(values))
        communicator.all_reduce(VersionedLender(values))
        with pytest.raises(r2ccl.InvalidArgumentError):
            communicator.all_reduce(Lender(values), Lender(np.zeros(5)))
        del values
        assert lives() is None


@pytest.mark.parametrize("kind", [Lender, VersionedLender])
def test_tensors_with_gaps_are_refused(kind: type[Lender]) -> None:
    with worlds.alone() as communicator:
        with pytest.raises(r2ccl.InvalidArgumentError, match="not C-contiguous"):
            communicator.all_reduce(kind(np.zeros((4, 4))[:, 1]))
        with pytest.raises(r2ccl.InvalidArgumentError, match="DLPack type 5 with 64 bits"):
            communicator.all_reduce(kind(np.zeros(4, np.complex64)))
        communicator.all_reduce(kind(np.zeros((4, 4))[:, :0]))
        communicator.all_reduce(kind(np.zeros((4, 1, 4))))


def test_read_only_tensors_are_no_outputs() -> None:
    values = np.arange(4)
    values.flags.writeable = False
    with worlds.alone() as communicator:
        with pytest.raises(r2ccl.InvalidArgumentError, match="read-only"):
            communicator.all_reduce(VersionedLender(values))
        output = np.zeros(4, values.dtype)
        communicator.all_reduce(VersionedLender(values), output)
    assert (output == values).all()


@pytest.mark.parametrize("code", "bBiIlLqQfd")
def test_arrays_of_the_standard_library(code: str) -> None:
    values = array.array(code, [0, 0, 0])
    with worlds.alone() as communicator:
        filled(communicator, values, array.array(code, [1, 2, 3]))
        communicator.all_reduce(values)
    assert values.tolist() == [1, 2, 3]


def test_plain_bytes() -> None:
    with worlds.alone() as communicator, mmap.mmap(-1, 8) as mapped:
        values = bytearray(8)
        filled(communicator, values, b"abcdefgh")
        filled(communicator, mapped, values)
        assert mapped[:] == b"abcdefgh"
        filled(communicator, memoryview(values)[2:4], b"XY")
        assert values == b"abXYefgh"
        del mapped


def test_scalars_and_nothing() -> None:
    with worlds.alone() as communicator:
        scalar = np.array(3.5)
        output = np.array(0.0)
        communicator.all_reduce(scalar, output)
        assert output == 3.5
        communicator.all_reduce(b"", bytearray())
        communicator.all_reduce(np.zeros((0, 7)))


def test_types_that_numpy_does_not_know() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with worlds.alone() as communicator:
        for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
            values = np.zeros(3, dtype)
            filled(communicator, values, np.arange(3).astype(dtype))
            communicator.all_reduce(values, op=r2ccl.ReduceOp.premul_sum(2))
            assert values.astype(float).tolist() == [0, 2, 4]
        with pytest.raises(r2ccl.InvalidArgumentError, match="does not lend its memory"):
            communicator.all_reduce(np.zeros(3, ml_dtypes.float8_e3m4))


def test_tensors_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    with worlds.alone() as communicator:
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.bool):
            values = torch.zeros(2, 3, dtype=dtype)
            filled(communicator, values, torch.ones(2, 3, dtype=dtype))
            communicator.all_reduce(values, op=r2ccl.ReduceOp.MAX)
            assert (values == 1).all()
        with pytest.raises(r2ccl.InvalidArgumentError, match="detach"):
            communicator.all_reduce(torch.zeros(3, requires_grad=True))
        with pytest.raises(r2ccl.InvalidArgumentError, match="not C-contiguous"):
            communicator.all_reduce(torch.zeros(3, 4).T)
