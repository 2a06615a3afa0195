"""Every collective on memory of a device gives the bits that it gives on memory of the host."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from devices import bits, device, there
from worlds import run_world

Lists = list[torch.Tensor]

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
OPS = [
    dist.ReduceOp.SUM,
    dist.ReduceOp.PRODUCT,
    dist.ReduceOp.MIN,
    dist.ReduceOp.MAX,
    dist.ReduceOp.AVG,
]


def values(count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Numbers of this rank, whose sums and products are exact in any order, up to 4 ranks."""
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    small = torch.randint(0 if dtype == torch.uint8 else -2, 3, (count,), generator=generator)
    return small.to(dtype)


def same(call: Callable[[Lists, Lists], Any], inputs: Lists, outputs: Lists) -> None:
    """Makes a call on the host and on the device, and compares all bits."""
    here = ([one.clone() for one in inputs], [one.clone() for one in outputs])
    device_side = ([there(one) for one in inputs], [there(one) for one in outputs])
    call(*here)
    call(*device_side)
    for on_host, on_device in zip(here[0] + here[1], device_side[0] + device_side[1], strict=True):
        assert on_device.is_cuda
        assert bits(on_device) == on_host.contiguous().view(torch.uint8).numpy().tobytes()


def reductions() -> None:
    for dtype in [*FLOATS, *INTEGERS]:
        for op in OPS:
            x = values(67, dtype)
            same(lambda _, o, op=op: dist.all_reduce(o[0], op), [], [x])
    # Of a type that the library does not have, and of one that has a meaning of its own.
    same(lambda _, o: dist.all_reduce(o[0]), [], [values(9, torch.complex64)])
    same(lambda _, o: dist.all_reduce(o[0]), [], [values(9, torch.bool)])
    same(lambda _, o: dist.all_reduce(o[0]), [], [values(0, torch.float32)])
    scaled = dist._make_nccl_premul_sum(0.5)
    same(lambda _, o: dist.all_reduce(o[0], scaled), [], [values(33, torch.float32)])
    for root in range(dist.get_world_size()):
        x = values(1000, torch.float32, root)
        same(lambda _, o, root=root: dist.reduce(o[0], root), [], [x])


def blocks() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    one, many = values(50, torch.float32), values(50 * size, torch.float32)
    same(lambda i, o: dist.reduce_scatter_tensor(o[0], i[0]), [many], [one])
    same(lambda i, o: dist.reduce_scatter(o[0], i), list(many.chunk(size)), [one])
    ragged = [values(10 + other, torch.int32, other) for other in range(size)]
    same(lambda i, o: dist.reduce_scatter(o[0], i), ragged, [torch.zeros_like(ragged[rank])])
    same(lambda i, o: dist.all_gather_into_tensor(o[0], i[0]), [one], [torch.zeros_like(many)])
    outputs = [torch.zeros_like(one) for _ in range(size)]
    same(lambda i, o: dist.all_gather(o, i[0]), [one], outputs)
    uneven = [torch.zeros(5 + other) for other in range(size)]
    same(lambda i, o: dist.all_gather(o, i[0]), [values(5 + rank, torch.float32)], uneven)
    same(lambda _, o: dist.broadcast(o[0], size - 1), [], [values(77, torch.int64)])
    root = size - 1
    gathered = outputs if rank == root else []
    same(lambda i, o: dist.gather(i[0], o or None, dst=root), [one], gathered)
    scattered = list(many.chunk(size)) if rank == root else []
    same(lambda i, o: dist.scatter(o[0], i or None, src=root), scattered, [torch.zeros_like(one)])


def exchanges() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    x = values(12 * size, torch.float32)
    same(lambda i, o: dist.all_to_all_single(o[0], i[0]), [x], [torch.zeros_like(x)])
    sent = [1 + rank + other for other in range(size)]
    received = [1 + rank + other for other in range(size)]
    x = values(sum(sent), torch.float64)
    same(
        lambda i, o: dist.all_to_all_single(o[0], i[0], received, sent),
        [x],
        [torch.zeros(sum(received), dtype=torch.float64)],
    )
    inputs = [values(3 + rank, torch.int32, other) for other in range(size)]
    outputs = [torch.zeros(3 + other, dtype=torch.int32) for other in range(size)]
    same(lambda i, o: dist.all_to_all(o, i), inputs, outputs)


def strides() -> None:
    size = dist.get_world_size()
    tall = values(24, torch.float32).reshape(6, 4).t()
    same(lambda _, o: dist.all_reduce(o[0]), [], [tall])
    same(lambda _, o: dist.broadcast(o[0], 0), [], [tall])
    wide = torch.zeros(4 * size, 6).t()
    rows = [torch.zeros(6, 4).t() for _ in range(size)]
    same(lambda i, o: dist.all_gather(o, i[0]), [tall], rows)
    del wide


def coalesced() -> None:
    size = dist.get_world_size()
    xs = [values(count, torch.float32) for count in (3, 40, 0)]
    same(lambda _, o: dist.all_reduce_coalesced(o), [], xs)

    def together(_: Lists, outputs: Lists) -> None:
        with dist._coalescing_manager(async_ops=True) as block:
            for output in outputs:
                dist.all_reduce(output)
        block.wait()

    same(together, [], xs)

    def one_by_one(_: Lists, outputs: Lists) -> None:
        with dist._coalescing_manager(device=outputs[0].device, async_ops=True) as block:
            for output in outputs:
                dist.broadcast(output, size - 1)
        block.wait()

    same(one_by_one, [], xs)


@pytest.mark.parametrize("part", [reductions, blocks, exchanges, strides, coalesced])
def test_collectives_are_those_of_the_host(part: Callable[[], None]) -> None:
    run_world(2, part)


def everything() -> None:
    for part in (reductions, blocks, exchanges, strides, coalesced):
        part()


def test_three_ranks() -> None:
    run_world(3, everything)


def some() -> None:
    same(lambda _, o: dist.all_reduce(o[0]), [], [values(100, torch.float32)])
    same(lambda _, o: dist.broadcast(o[0], 1), [], [values(100, torch.int64)])
    dist.barrier()


@pytest.mark.parametrize("backend", ["cpu:r2ccl,cuda:r2ccl", "cpu:gloo,cuda:r2ccl"])
def test_backends_by_device(backend: str) -> None:
    run_world(2, some, backend=backend)


def large() -> None:
    generator = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(300_001, generator=generator)
    same(lambda _, o: dist.all_reduce(o[0]), [], [x])
    y = torch.randn(100_000 * dist.get_world_size(), generator=generator)
    same(lambda i, o: dist.all_to_all_single(o[0], i[0]), [y], [torch.zeros_like(y)])


def test_calls_that_are_cut_into_pieces() -> None:
    run_world(2, large, environment={"R2CCL_CUDA_STAGING_BYTES": "65536"})


def experts() -> None:
    """Tokens to experts and back, of which most go to one: far more than the staging memory."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def exchange(sent: list[int], received: list[int]) -> None:
        x, y = values(sum(sent), torch.float32), torch.zeros(sum(received))
        same(lambda i, o: dist.all_to_all_single(o[0], i[0], received, sent), [x], [y])

    for popular in range(size):
        sent = [90_001 if other == popular else 7 * other for other in range(size)]
        received = [90_001 if rank == popular else 7 * rank] * size
        exchange(sent, received)
        exchange(received, sent)


def test_uneven_calls_that_are_larger_than_what_is_pinned() -> None:
    run_world(3, experts, environment={"R2CCL_CUDA_STAGING_BYTES": "65536"})


def by_kernels(logs: Path) -> None:
    """The first calls go through the host; then all ranks change to kernels."""
    log = logs / f"{dist.get_rank()}"
    with log.open("wb") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    for _ in range(3):
        blocks()
        exchanges()
    generator = torch.Generator().manual_seed(dist.get_rank())
    for count in (10, 30_000):
        for _ in range(20):
            x = torch.randn(count, generator=generator)
            same(lambda _, o: dist.all_reduce(o[0]), [], [x])
    # Nothing else tells which way calls go.
    assert "collectives without the host" in log.read_text()


def test_calls_that_kernels_of_the_library_do(tmp_path: Path) -> None:
    folder = os.environ.get("CCL_TEST_CUDA_KERNELS")
    if folder is None:
        pytest.skip("CCL_TEST_CUDA_KERNELS names no folder with compiled kernels")
    environment = {"R2CCL_CUDA_KERNELS": folder, "R2CCL_LOG": "ccl=info"}
    run_world(2, by_kernels, tmp_path, environment=environment)


def messages() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    following, previous = (rank + 1) % size, (rank - 1) % size
    for count in (1, 70_000):
        sent, expected = torch.arange(count) + rank, torch.arange(count) + previous
        # All at once, in a ring.
        received = torch.empty(count, dtype=torch.int64, device=device())
        operations = [
            dist.P2POp(dist.isend, there(sent), following),
            dist.P2POp(dist.irecv, received, previous),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert bits(received) == bits(there(expected))
        # One after the other, between two ranks that both send first.
        if rank < 2:
            other = 1 - rank
            received = torch.empty(count, dtype=torch.int64, device=device())
            outgoing = dist.isend(there(sent), other)
            incoming = dist.irecv(received, other)
            assert outgoing is not None and incoming is not None
            incoming.wait()
            outgoing.wait()
            assert bits(received) == bits(there(torch.arange(count) + other))
    if rank == 0:
        dist.send(there(torch.arange(6.0).reshape(2, 3).t()), 1)
        dist.recv(received, 1)
        assert bits(received) == bits(there(torch.arange(received.numel())))
    elif rank == 1:
        turned = there(torch.zeros(2, 3).t())
        dist.recv(turned, 0)
        assert bits(turned) == bits(torch.arange(6.0).reshape(2, 3).t())
        dist.send(there(torch.arange(received.numel())), 0)


@pytest.mark.parametrize("size", [2, 3])
def test_messages(size: int) -> None:
    run_world(size, messages)


def groups() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    pair = dist.new_group([0, 1])
    if rank < 2:
        x = there(torch.full((5,), float(rank + 1)))
        dist.all_reduce(x, group=pair)
        assert bits(x) == bits(torch.full((5,), 3.0))
    x = there(torch.ones(5))
    dist.all_reduce(x)
    assert bits(x) == bits(torch.full((5,), float(size)))
    assert dist.group.WORLD is not None
    few = dist.split_group(dist.group.WORLD, [[0, 2]])
    if rank in (0, 2):
        x = there(torch.ones(5))
        dist.all_reduce(x, group=few)
        assert bits(x) == bits(torch.full((5,), 2.0))


def test_groups_of_some_ranks() -> None:
    run_world(3, groups)


def bound() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("bound", dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    dist.init_process_group("r2ccl", store=store, rank=rank, world_size=size, device_id=device())
    dist.barrier()
    groups()
    dist.barrier()
    other = torch.empty(3, device="cuda:1") if torch.cuda.device_count() > 1 else None
    if other is not None:
        with pytest.raises(ValueError, match="cuda:1.*cuda:0.*one device"):
            dist.all_reduce(other)


def test_a_group_that_is_bound_to_a_device() -> None:
    run_world(3, bound)


def objects() -> None:
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, {"rank": dist.get_rank()})
    assert everything == [{"rank": rank} for rank in range(dist.get_world_size())]


@pytest.mark.parametrize("backend", ["r2ccl", "cpu:gloo,cuda:r2ccl"])
def test_objects(backend: str) -> None:
    run_world(2, objects, backend=backend)
