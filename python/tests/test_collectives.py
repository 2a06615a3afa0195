"""Every collective, on every type of elements, out of place and in place, against NumPy."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import worlds

import r2ccl
from r2ccl import ReduceOp

SIZES = [1, 2, 3]
COUNTS = [0, 1, 7, 4099]
DTYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
Array = np.ndarray[Any, Any]


def contribution(rank: int, count: int, dtype: str) -> Array:
    """Small numbers: every order of summation gives the exact result, in all types."""
    return ((np.arange(count) % 5) * (rank + 1) % 7).astype(dtype)


def everybody(size: int, count: int, dtype: str) -> list[Array]:
    return [contribution(rank, count, dtype) for rank in range(size)]


def equal(result: Array, expected: Array) -> None:
    np.testing.assert_array_equal(result, expected, strict=True)


REDUCTIONS: list[tuple[ReduceOp, Callable[[list[Array]], Array]]] = [
    (ReduceOp.SUM, lambda arrays: sum(arrays[1:], start=arrays[0].copy())),
    (ReduceOp.PROD, lambda arrays: np.prod(np.stack(arrays), axis=0, dtype=arrays[0].dtype)),
    (ReduceOp.MIN, lambda arrays: np.min(np.stack(arrays), axis=0)),
    (ReduceOp.MAX, lambda arrays: np.max(np.stack(arrays), axis=0)),
]


def all_reduce(communicator: r2ccl.Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    for dtype in DTYPES:
        for count in COUNTS:
            for op, combine in REDUCTIONS:
                expected = combine(everybody(size, count, dtype))
                mine = contribution(rank, count, dtype)
                output = np.zeros_like(mine)
                assert communicator.all_reduce(mine, output, op) is None
                equal(output, expected)
                equal(mine, contribution(rank, count, dtype))
                communicator.all_reduce(mine, op=op)
                equal(mine, expected)


def means(communicator: r2ccl.Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    total = size * (size - 1) // 2
    numbers = np.full(9, rank, np.float64) * size
    communicator.all_reduce(numbers, op=ReduceOp.AVG)
    np.testing.assert_allclose(numbers, np.full(9, float(total)), rtol=1e-12)
    integers = np.full(9, -rank, np.int32)
    communicator.all_reduce(integers, op=ReduceOp.AVG)
    equal(integers, np.full(9, int(-total / size), np.int32))


def scaled_sums(communicator: r2ccl.Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    for dtype in ["float16", "float32", "float64", "int8", "uint64"]:
        # Ranks have different scalars.
        ones = np.ones(5, dtype)
        communicator.all_reduce(ones, op=ReduceOp.premul_sum(rank + 1))
        equal(ones, np.full(5, size * (size + 1) // 2, dtype))
    halves = np.ones(5, np.float32)
    communicator.all_reduce(halves, op=ReduceOp.premul_sum(0.5))
    equal(halves, np.full(5, 0.5 * size, np.float32))


def all_gather(communicator: r2ccl.Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    for dtype in DTYPES:
        for count in COUNTS:
            expected = np.concatenate(everybody(size, count, dtype))
            output = np.zeros(size * count, dtype)
            communicator.all_gather(contribution(rank, count, dtype), output)
            equal(output, expected)
            whole = np.zeros(size * count, dtype)
            whole[rank * count : (rank + 1) * count] = contribution(rank, count, dtype)
            communicator.all_gather(whole)
            equal(whole, expected)


def reduce_scatter(communicator: r2ccl.Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    for dtype in DTYPES:
        for count in COUNTS:
            whole = sum(everybody(size, size * count, dtype), np.zeros(size * count, dtype))
            expected = whole[rank * count : (rank + 1) * count]
            mine = contribution(rank, size * count, dtype)
            output = np.zeros(count, dtype)
            communicator.reduce_scatter(mine, output)
            equal(output, expected)
            equal(mine, contribution(rank, size * count, dtype))
            communicator.reduce_scatter(mine)
            equal(mine[rank * count : (rank + 1) * count], expected)


def rooted(communicator: r2ccl.Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    for root in range(size):
        for dtype in DTYPES:
            for count in COUNTS:
                one_rooted(communicator, root, everybody(size, count, dtype), rank == root)


def one_rooted(
    communicator: r2ccl.Communicator, root: int, parts: list[Array], is_root: bool
) -> None:
    """Broadcast, reduce, gather and scatter, where `parts` are the contributions."""
    size, mine = communicator.size, parts[communicator.rank]
    count, dtype, all_parts = mine.size, mine.dtype, np.concatenate(parts)
    buffer = mine.copy()
    communicator.broadcast(buffer, root)
    equal(buffer, parts[root])

    total = sum(parts[1:], start=parts[0].copy())
    output = np.zeros(count, dtype)
    communicator.reduce(mine, output if is_root else None, root=root)
    equal(output, total if is_root else np.zeros(count, dtype))
    in_place = mine.copy()
    communicator.reduce(in_place, root=root)
    equal(in_place, total if is_root else mine)

    output = np.zeros(size * count, dtype)
    communicator.gather(mine, output if is_root else None, root)
    equal(output, all_parts if is_root else np.zeros(size * count, dtype))
    whole = np.zeros(size * count, dtype) if is_root else mine.copy()
    if is_root:
        whole[root * count : (root + 1) * count] = mine
    communicator.gather(whole, root=root)
    equal(whole, all_parts if is_root else mine)

    output = np.zeros(count, dtype)
    communicator.scatter(all_parts if is_root else None, output, root)
    equal(output, mine)
    if is_root:
        communicator.scatter(whole, root=root)
        equal(whole, all_parts)
    else:
        output[:] = 0
        communicator.scatter(None, output, root)
        equal(output, mine)


def all_to_all(communicator: r2ccl.Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    for dtype in DTYPES:
        for count in COUNTS:
            parts = [part.reshape(size, count) for part in everybody(size, size * count, dtype)]
            expected = np.concatenate([part[rank] for part in parts])
            output = np.zeros(size * count, dtype)
            communicator.all_to_all(parts[rank], output)
            equal(output, expected)
            in_place = parts[rank].copy()
            communicator.all_to_all(in_place)
            equal(in_place.ravel(), expected)


def all_to_all_v(communicator: r2ccl.Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    # Rank i sends i + j elements, all with the value 10 i + j, to rank j.
    sent, received = [rank + j for j in range(size)], [i + rank for i in range(size)]
    values = [10 * rank + j for j in range(size)]
    expected = np.repeat([10 * i + rank for i in range(size)], received).astype(np.int32)
    output = np.zeros(sum(received), np.int32)
    communicator.all_to_all_v(np.repeat(values, sent).astype(np.int32), output, sent, received)
    equal(output, expected)

    # The same with a gap of one element before every block.
    stride = 2 * size
    places = [1 + stride * j for j in range(size)]
    data = np.full(stride * size + 1, -1, np.int32)
    for value, count, place in zip(values, sent, places, strict=True):
        data[place : place + count] = value
    result = np.full(stride * size + 1, -1, np.int32)
    counts = np.array(sent), tuple(received)
    communicator.all_to_all_v(data, result, *counts, places, places)
    blocks = [result[place : place + count] for place, count in zip(places, received, strict=True)]
    equal(np.concatenate(blocks), expected)
    assert np.count_nonzero(result == -1) == result.size - sum(received)


def messages(communicator: r2ccl.Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    ahead, behind = (rank + 1) % size, (rank - 1) % size
    for dtype in DTYPES:
        for count in COUNTS:
            # A ring: nobody may wait for the other to receive first.
            output = np.zeros(count, dtype)
            with r2ccl.Group():
                communicator.send(contribution(rank, count, dtype), ahead)
                communicator.recv(output, behind)
            equal(output, contribution(behind, count, dtype))
    if size > 1 and rank == 0:
        communicator.send(np.arange(11), 1)
    elif rank == 1:
        output = np.zeros(11, int)
        communicator.recv(output, 0)
        equal(output, np.arange(11))


def truth_values(communicator: r2ccl.Communicator) -> None:
    rank, size = communicator.rank, communicator.size
    mine = np.arange(size) == rank
    output = np.zeros(size, bool)
    communicator.all_reduce(mine, output, ReduceOp.MAX)
    assert output.all()
    communicator.all_reduce(mine, output, ReduceOp.MIN)
    assert output.all() == (size == 1)
    with pytest.raises(r2ccl.InvalidArgumentError, match='MAX is its "or"'):
        communicator.all_reduce(mine, output)


def short_floats(communicator: r2ccl.Communicator) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rank, size = communicator.rank, communicator.size
    for dtype in [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]:
        mine = (np.arange(4) + rank).astype(dtype)
        communicator.all_reduce(mine, op=ReduceOp.MAX)
        equal(mine, (np.arange(4) + size - 1).astype(dtype))
        # Whatever is summed on the way is a power of two times a number of at most three bits.
        powers = np.array([0, 1, 2, 4])
        mine = powers.astype(dtype)
        communicator.all_reduce(mine, op=ReduceOp.premul_sum(1.0 if rank == 0 else 0.5))
        equal(mine, (powers * (size + 1) / 2).astype(dtype))


CASES = [
    all_reduce,
    means,
    scaled_sums,
    all_gather,
    reduce_scatter,
    rooted,
    all_to_all,
    all_to_all_v,
    messages,
    truth_values,
    short_floats,
]


def all_cases(communicator: r2ccl.Communicator) -> list[str]:
    """Every case in one world; processes are expensive."""
    for case in CASES:
        case(communicator)
    return [case.__name__ for case in CASES]


@pytest.mark.parametrize("size", SIZES)
def test_results_are_numpys(size: int) -> None:
    assert worlds.run(all_cases, size) == [[case.__name__ for case in CASES]] * size


def divided(communicator: r2ccl.Communicator) -> tuple[int, int] | None:
    """Odd ranks, in backward order; the last rank of all is in no part."""
    rank, size = communicator.rank, communicator.size
    color = None if rank == size - 1 else rank % 2
    part = communicator.split(color, -rank, name="part")
    if part is None:
        return None
    with part:
        total = np.array([rank])
        part.all_reduce(total)
        assert part.name == "part"
        return part.rank, int(total[0])


def test_split_orders_by_key() -> None:
    assert worlds.run(divided, 4) == [(1, 2), (0, 1), (0, 2), None]


def inquiries(communicator: r2ccl.Communicator) -> tuple[int, str, int]:
    assert communicator.async_error is None
    assert communicator.name is None
    text = communicator.explain("all_reduce", 1 << 20, "bfloat16", ReduceOp.MAX)
    with pytest.raises(r2ccl.InvalidArgumentError, match="no collective"):
        communicator.explain("all_think", 1)
    with pytest.raises(r2ccl.InvalidArgumentError, match="float32"):
        communicator.explain("all_reduce", 1, "float31")
    for rail in communicator.health():
        assert rail.state is r2ccl.RailState.UP
        assert rail.verdict is r2ccl.Verdict.UNKNOWN
        assert rail.last_fault is None
        assert rail.counters.faults == 0
    return communicator.epoch, text, len(communicator.health())


def test_a_communicator_tells_about_itself() -> None:
    for epoch, text, rails in worlds.run(inquiries, 2, apart=True):
        assert (epoch, rails) == (0, 4)
        assert "ring" in text


def test_results_are_numpys_between_hosts() -> None:
    assert worlds.run(all_cases, 2, apart=True) == [[case.__name__ for case in CASES]] * 2


def launched(communicator: r2ccl.Communicator) -> tuple[int, int]:
    """A second communicator, of the environment of an mpirun, whose ranks have one parent."""
    rank, size = communicator.rank, communicator.size
    os.environ.update(PMI_RANK=str(rank), PMI_SIZE=str(size))
    os.environ.update(MPI_LOCALRANKID=str(rank), MPI_LOCALNRANKS=str(size))
    with r2ccl.Communicator.from_environment(name="job", timeout=worlds.TIMEOUT) as member:
        total = np.ones(3)
        member.all_reduce(total)
        assert (total == size).all()
        assert repr(member) == f'<Communicator "job": rank {rank} of {size}>'
        return member.rank, member.size


def test_launchers_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("OMPI_", "PMI_", "SLURM_", "RANK", "WORLD_SIZE", "MPI_")):
            monkeypatch.delenv(name)
    assert worlds.run(launched, 2) == [(0, 2), (1, 2)]
