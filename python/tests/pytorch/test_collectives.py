"""Every collective and type against Gloo in the same processes, to the last bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from worlds import run_world

SIZES = [2, 3, 4]
COUNTS = [0, 1, 7, 1000, 70_001]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
MOVED = [
    *INTEGERS,
    *FLOATS,
    *COMPLEX,
    torch.bool,
    torch.int16,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]

Collective = Callable[[torch.Tensor, dist.ProcessGroup], list[torch.Tensor]]


def numbers(count: int, dtype: torch.dtype, rank: int) -> torch.Tensor:
    """Small whole numbers that differ by rank: sums and products are exact in all types."""
    generator = torch.Generator().manual_seed(1000 * rank + count)
    values = torch.randint(0, 4, (count,), generator=generator)
    if dtype.is_complex:
        return torch.complex(values.double(), values.flip(0).double()).to(dtype)
    return values.to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, so that types without arithmetic can be compared."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def all_reduce(op: dist.ReduceOp.RedOpType) -> Collective:
    def call(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
        dist.all_reduce(tensor, op, group=group)
        return [tensor]

    return call


def reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    root = dist.get_world_size() - 1
    dist.reduce(tensor, root, group=group)
    return [tensor] if dist.get_rank() == root else []


def broadcast(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    dist.broadcast(tensor, 1, group=group)
    return [tensor]


def all_gather(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    outputs = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, tensor, group=group)
    return outputs


def all_gather_into_tensor(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    output = tensor.new_empty(tensor.numel() * dist.get_world_size())
    dist.all_gather_into_tensor(output, tensor, group=group)
    return [output]


def reduce_scatter(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    inputs = [
        numbers(tensor.numel(), tensor.dtype, 10 * dist.get_rank() + i)
        for i in range(dist.get_world_size())
    ]
    dist.reduce_scatter(tensor, inputs, group=group)
    return [tensor]


def reduce_scatter_tensor(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    whole = numbers(tensor.numel() * dist.get_world_size(), tensor.dtype, dist.get_rank())
    dist.reduce_scatter_tensor(tensor, whole, group=group)
    return [tensor]


def all_to_all_single(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    whole = numbers(tensor.numel() * dist.get_world_size(), tensor.dtype, dist.get_rank())
    output = torch.empty_like(whole)
    dist.all_to_all_single(output, whole, group=group)
    return [output]


def all_to_all_uneven(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = [(rank + 2 * peer) % 5 for peer in range(size)]
    received = [(peer + 2 * rank) % 5 for peer in range(size)]
    whole = numbers(sum(sent) * 3, tensor.dtype, rank).view(-1, 3)
    output = whole.new_empty(sum(received), 3)
    dist.all_to_all_single(output, whole, received, sent, group=group)
    return [output]


def all_to_all(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    inputs = [numbers(tensor.numel(), tensor.dtype, rank + peer) for peer in range(size)]
    outputs = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_to_all(outputs, inputs, group=group)
    return outputs


def gather(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    is_root = dist.get_rank() == 1
    outputs = [torch.empty_like(tensor) for _ in range(dist.get_world_size())] if is_root else None
    dist.gather(tensor, outputs, dst=1, group=group)
    return outputs or []


def scatter(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    is_root = dist.get_rank() == 1
    count, size = tensor.numel(), dist.get_world_size()
    inputs = [numbers(count, tensor.dtype, 20 + i) for i in range(size)] if is_root else None
    dist.scatter(tensor, inputs, src=1, group=group)
    return [tensor]


REDUCING = {
    "all_reduce_sum": all_reduce(dist.ReduceOp.SUM),
    "all_reduce_product": all_reduce(dist.ReduceOp.PRODUCT),
    "all_reduce_min": all_reduce(dist.ReduceOp.MIN),
    "all_reduce_max": all_reduce(dist.ReduceOp.MAX),
    "reduce": reduce,
    "reduce_scatter": reduce_scatter,
    "reduce_scatter_tensor": reduce_scatter_tensor,
}
COMPLEX_REDUCING = {"all_reduce_sum": all_reduce(dist.ReduceOp.SUM), "reduce": reduce}
BITWISE = {
    "band": all_reduce(dist.ReduceOp.BAND),
    "bor": all_reduce(dist.ReduceOp.BOR),
    "bxor": all_reduce(dist.ReduceOp.BXOR),
}
MOVING = {
    "broadcast": broadcast,
    "all_gather": all_gather,
    "all_gather_into_tensor": all_gather_into_tensor,
    "all_to_all_single": all_to_all_single,
    "all_to_all_uneven": all_to_all_uneven,
    "all_to_all": all_to_all,
    "gather": gather,
    "scatter": scatter,
}
TABLES = {"reducing": REDUCING, "complex": COMPLEX_REDUCING, "bitwise": BITWISE, "moving": MOVING}


def differences_from_gloo(
    table: str, name: str, dtypes: list[torch.dtype]
) -> tuple[list[str], int]:
    """Where the two disagree, and how many results were compared."""
    gloo = dist.new_group(backend="gloo")
    assert dist.group.WORLD is not None
    collective = TABLES[table][name]
    different, compared = [], 0
    for dtype in dtypes:
        for count in COUNTS:
            tensor = numbers(count, dtype, dist.get_rank())
            ours = collective(tensor.clone(), dist.group.WORLD)
            theirs = collective(tensor.clone(), gloo)
            compared += len(ours)
            if any(not torch.equal(bits(a), bits(b)) for a, b in zip(ours, theirs, strict=True)):
                different.append(f"{name} of {count} {dtype}")
    return different, compared


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", list(REDUCING))
def test_reductions_are_those_of_gloo(size: int, name: str) -> None:
    for different, compared in run_world(
        size, differences_from_gloo, "reducing", name, INTEGERS + FLOATS
    ):
        assert different == []
        assert compared > 0 or name == "reduce"


@pytest.mark.parametrize("name", list(COMPLEX_REDUCING))
def test_sums_of_complex_numbers_are_those_of_gloo(name: str) -> None:
    for different, _ in run_world(3, differences_from_gloo, "complex", name, COMPLEX):
        assert different == []


@pytest.mark.parametrize("name", list(BITWISE))
def test_bitwise_reductions_are_those_of_gloo(name: str) -> None:
    for different, _ in run_world(3, differences_from_gloo, "bitwise", name, INTEGERS):
        assert different == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", list(MOVING))
def test_moved_data_is_that_of_gloo(size: int, name: str) -> None:
    for different, _ in run_world(size, differences_from_gloo, "moving", name, INTEGERS + FLOATS):
        assert different == []


def all_types_moved() -> list[str]:
    wrong = []
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in MOVED:
        tensor = numbers(33, dtype, rank)
        outputs = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(outputs, tensor)
        for peer, output in enumerate(outputs):
            if not torch.equal(bits(output), bits(numbers(33, dtype, peer))):
                wrong.append(f"all_gather of {dtype}")
        dist.broadcast(tensor, 0)
        if not torch.equal(bits(tensor), bits(numbers(33, dtype, 0))):
            wrong.append(f"broadcast of {dtype}")
    return wrong


def test_all_types_are_moved() -> None:
    assert run_world(3, all_types_moved) == [[], [], []]


def special_reductions() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    truth = torch.tensor([rank == 0, rank == 1, False, True])
    for op, expected in (
        (dist.ReduceOp.SUM, [True, True, False, True]),
        (dist.ReduceOp.MAX, [True, True, False, True]),
        (dist.ReduceOp.BOR, [True, True, False, True]),
        (dist.ReduceOp.PRODUCT, [False, False, False, True]),
        (dist.ReduceOp.MIN, [False, False, False, True]),
        (dist.ReduceOp.BAND, [False, False, False, True]),
    ):
        result = truth.clone()
        dist.all_reduce(result, op)
        assert result.tolist() == expected, op
        assert result.view(torch.uint8).max() == 1
    different = torch.tensor([True, rank == 0])
    dist.all_reduce(different, dist.ReduceOp.BXOR)
    assert different.tolist() == [size % 2 == 1, True]
    mean = torch.tensor([float(rank)])
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert mean.item() == (size - 1) / 2
    scaled = torch.tensor([1.0 + rank], dtype=torch.float64)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
    assert scaled.item() == 0.5 * size * (size + 1) / 2
    whole = torch.tensor([1 + rank], dtype=torch.int8)
    dist.all_reduce(whole, dist._make_nccl_premul_sum(-3.0))
    assert whole.item() == -3 * size * (size + 1) // 2
    for dtype in (torch.complex32, torch.complex64, torch.complex128):
        for op, factor in ((dist.ReduceOp.AVG, 1 / size), (dist._make_nccl_premul_sum(2.0), 2.0)):
            numbers_of_all = torch.tensor([rank + 2j]).to(dtype)
            dist.all_reduce(numbers_of_all, op)
            assert numbers_of_all.item() == factor * (sum(range(size)) + 2j * size), (dtype, op)
    rounded = torch.tensor([-1 - rank, 1 + rank])
    dist.all_reduce(rounded, dist.ReduceOp.AVG)
    assert rounded.tolist() == [-2, 2]
    mask = torch.full((4,), 1 << rank)
    dist.reduce(mask, 1, dist.ReduceOp.BOR)
    assert mask[0].item() == ((1 << size) - 1 if rank == 1 else 1 << rank)
    part = torch.zeros(2, dtype=torch.int32)
    dist.reduce_scatter_tensor(
        part, torch.arange(2 * size, dtype=torch.int32) + 16 * rank, dist.ReduceOp.BXOR
    )
    whole = torch.zeros(2 * size, dtype=torch.int32)
    for peer in range(size):
        whole ^= torch.arange(2 * size, dtype=torch.int32) + 16 * peer
    assert torch.equal(part, whole[2 * rank : 2 * rank + 2])
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint32, torch.uint64):
        small = torch.full((5,), 2).to(dtype)
        dist.all_reduce(small)
        assert small.to(torch.float64).tolist() == [2.0 * size] * 5, dtype


def test_truth_values_means_and_scaled_sums() -> None:
    run_world(3, special_reductions)


def strided_tensors() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    square = torch.arange(12.0).view(3, 4) + rank
    expected = size * torch.arange(12.0).view(3, 4) + sum(range(size))
    turned = square.clone().t()
    assert not turned.is_contiguous()
    dist.all_reduce(turned)
    assert torch.equal(turned, expected.t())
    every_second = torch.zeros(3, 8)
    part = every_second[:, ::2]
    part.copy_(square)
    dist.all_reduce(part)
    assert torch.equal(part, expected)
    assert torch.equal(every_second[:, 1::2], torch.zeros(3, 4))
    outputs = [torch.zeros(4, 3).t() for _ in range(size)]
    dist.all_gather(outputs, square.t().contiguous().t())
    assert all(
        torch.equal(output, torch.arange(12.0).view(3, 4) + i) for i, output in enumerate(outputs)
    )
    parameter = torch.nn.Parameter(torch.full((2, 3), float(rank))[:, ::2])
    dist.broadcast(parameter, 1)
    assert parameter.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    negated = torch.tensor([1 + 1j * rank]).conj().imag
    assert negated.is_neg()
    gathered = [torch.empty(1) for _ in range(size)]
    dist.all_gather(gathered, negated)
    assert [value.item() for value in gathered] == [-float(peer) for peer in range(size)]


def test_strided_tensors_keep_their_meaning() -> None:
    run_world(3, strided_tensors)


def uneven_lists() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    outputs = [torch.empty(peer + 1) for peer in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
    assert [output.tolist() for output in outputs] == [
        [float(peer)] * (peer + 1) for peer in range(size)
    ]
    # In memory one behind the other, one of which already holds what its rank contributes.
    slots = list(torch.zeros(size * (size + 1) // 2).split([peer + 1 for peer in range(size)]))
    slots[rank].fill_(float(rank))
    dist.all_gather(slots, slots[rank])
    assert [slot.tolist() for slot in slots] == [[float(peer)] * (peer + 1) for peer in range(size)]
    columns = [torch.empty(2 * peer + rank) for peer in range(size)]
    dist.all_to_all(columns, [torch.full((2 * rank + peer,), float(rank)) for peer in range(size)])
    assert [column.tolist() for column in columns] == [
        [float(p)] * (2 * p + rank) for p in range(size)
    ]
    inputs = [torch.full((peer + 1,), float(rank + peer)) for peer in range(size)]
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, inputs)
    assert output.tolist() == [float(sum(range(size)) + size * rank)] * (rank + 1)


def test_lists_of_different_sizes() -> None:
    run_world(3, uneven_lists)


def coalesced_calls() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = float(sum(range(size)))
    tensors = [torch.full((count,), float(rank)) for count in (1, 10, 100)]
    dist.all_reduce_coalesced(tensors)
    assert all(tensor.tolist() == [total] * tensor.numel() for tensor in tensors)
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as coalesced:
        outputs = [torch.empty(size * 2), torch.empty(size * 3)]
        for output in outputs:
            dist.all_gather_into_tensor(output, torch.full((output.numel() // size,), float(rank)))
    coalesced.wait()
    assert outputs[0].view(size, 2)[:, 0].tolist() == [float(peer) for peer in range(size)]
    with dist.distributed_c10d._coalescing_manager():
        parts = [torch.empty(2), torch.empty(3)]
        for part in parts:
            dist.reduce_scatter_tensor(part, torch.full((part.numel() * size,), float(rank)))
    assert all(part.tolist() == [total] * part.numel() for part in parts)
    with dist.distributed_c10d._coalescing_manager(
        device=torch.device("cpu"), async_ops=True
    ) as mixed:
        summed, sent = torch.full((4,), float(rank)), torch.full((4,), float(rank))
        dist.all_reduce(summed)
        dist.broadcast(sent, 1)
    mixed.wait()
    assert summed.tolist() == [total] * 4 and sent.tolist() == [1.0] * 4


def test_coalesced_calls() -> None:
    run_world(3, coalesced_calls)


def wrong_calls() -> list[str]:
    """The messages of calls that must be refused, on every rank, before anything moves."""
    size = dist.get_world_size()
    assert dist.group.WORLD is not None
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(torch.eye(2).to_sparse(), dist.ReduceOp.MAX),
        lambda: backend.allreduce_coalesced([torch.eye(2).to_sparse()]),
        lambda: backend.allreduce([torch.zeros(2, device="meta")]),
        lambda: dist.all_reduce(torch.zeros(2, dtype=torch.int16)),
        lambda: dist.all_reduce(torch.zeros(2), dist.ReduceOp.BAND),
        lambda: dist.all_reduce(torch.zeros(2, dtype=torch.bool), dist.ReduceOp.AVG),
        lambda: dist.all_reduce(torch.zeros(2, dtype=torch.int32), dist._make_nccl_premul_sum(0.5)),
        lambda: dist.all_reduce(
            torch.zeros(2, dtype=torch.int8), dist._make_nccl_premul_sum(300.0)
        ),
        lambda: dist.all_reduce(
            torch.zeros(2, dtype=torch.uint64), dist._make_nccl_premul_sum(-1.0)
        ),
        lambda: dist.all_reduce(
            torch.zeros(2, dtype=torch.int64), dist._make_nccl_premul_sum(2.0**63)
        ),
        lambda: dist.all_gather_into_tensor(torch.zeros(size + 1), torch.zeros(1)),
        lambda: dist.all_gather([torch.zeros(1)] * (size - 1), torch.zeros(1)),
        lambda: dist.all_to_all_single(
            torch.zeros(size), torch.zeros(size), [1] * (size + 1), None
        ),
        lambda: dist.all_to_all_single(torch.empty(2 * size), torch.ones(200 * size)),
        lambda: dist.all_to_all_single(torch.empty(200 * size), torch.ones(2 * size)),
        lambda: dist.all_to_all_single(torch.empty(size, 1), torch.ones(size, 3)),
        lambda: dist.all_to_all_single(torch.empty(size), torch.ones(size + 1)),
        lambda: dist.all_to_all_single(torch.empty(()), torch.ones(())),
        lambda: dist.all_to_all_single(torch.empty(size), torch.ones(size), None, [2] * size),
        lambda: dist.all_to_all_single(torch.empty(size + 1), torch.ones(size), [1] * size, None),
        lambda: dist.all_to_all_single(
            torch.empty(2), torch.ones(2), [3, -1] + [0] * (size - 2), [2] + [0] * (size - 1)
        ),
        # Their sum is 2, if one does not look closely.
        lambda: dist.all_to_all_single(
            torch.empty(2), torch.ones(2), [2] + [0] * (size - 1), [2**63 - 1] * 2
        ),
    ]
    messages = []
    for call in calls:
        try:
            call()
            messages.append("")
        except (RuntimeError, ValueError) as error:
            messages.append(str(error))
    after = torch.ones(1)
    dist.all_reduce(after)
    assert after.item() == size
    return messages


def test_wrong_calls_are_refused_and_harm_nobody() -> None:
    for messages in run_world(2, wrong_calls):
        expected = [
            "sums only",
            "dense",
            "meta",
            "SUM of Short",
            "BAND of Float",
            "AVG of Bool",
            "PREMUL_SUM of Int by 0.5",
            "PREMUL_SUM of Char by 300",
            "PREMUL_SUM of UInt64 by -1",
            "PREMUL_SUM of Long by 9.22337e+18",
            "blocks",
            "ranks",
            "splits",
            "an output of 4 elements for an input of 400",
            "an output of 400 elements for an input of 4",
            "an output of 2 elements for an input of 6",
            "3 rows for 2 ranks",
            "without dimensions",
            "splits of more than the 2 rows",
            "splits of 2 rows for a tensor of 3",
            "splits of more than the 2 rows",
            "splits of more than the 2 rows",
        ]
        for message, part in zip(messages, expected, strict=True):
            assert part in message, messages


def outputs_whose_elements_share_memory() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    shared, row = torch.zeros(1).expand(size), torch.ones(size)
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(shared),
        lambda: dist.all_reduce_coalesced([row, shared]),
        lambda: dist.reduce(shared, rank),
        lambda: dist.broadcast(shared, 1 - rank),
        lambda: dist.all_gather_into_tensor(shared, torch.ones(1)),
        lambda: dist.all_gather([shared] * size, row),
        lambda: dist.reduce_scatter_tensor(shared, torch.ones(size * size)),
        lambda: dist.reduce_scatter(shared, [row] * size),
        lambda: dist.all_to_all_single(shared, row),
        lambda: dist.all_to_all([shared] * size, [row] * size),
        lambda: dist.gather(row, [shared] * size, rank),
        lambda: dist.scatter(shared, [row] * size, rank),
        lambda: dist.irecv(shared, 1 - rank),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="share memory"):
            call()
    # They may be read, and nothing has moved.
    whole = torch.zeros(size * size)
    dist.all_gather_into_tensor(whole, row[:1].expand(size))
    assert whole.tolist() == [1.0] * size * size
    sent = row[:1].expand(size) if rank == 0 else torch.zeros(size)
    dist.broadcast(sent, 0)
    assert sent.tolist() == [1.0] * size


def test_outputs_whose_elements_share_memory_are_refused() -> None:
    run_world(2, outputs_whose_elements_share_memory)
