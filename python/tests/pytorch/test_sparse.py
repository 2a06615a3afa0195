"""Sums of sparse tensors, against those of the same tensors as dense ones."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

DTYPES = [torch.float32, torch.float64, torch.int64, torch.bfloat16]


def some_of(sizes: list[int], sparse: int, dtype: torch.dtype, rank: int) -> torch.Tensor:
    """A tensor with `5 * rank` elements in places that ranks share in part, some of them twice."""
    generator = torch.Generator().manual_seed(rank)
    count = 5 * rank
    indices = torch.stack(
        [torch.randint(0, size, (count,), generator=generator) for size in sizes[:sparse]]
    )
    values = torch.randint(1, 9, [count, *sizes[sparse:]], generator=generator)
    return torch.sparse_coo_tensor(indices, values.to(dtype), sizes)


def sums() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in DTYPES:
        for sizes, sparse in (([7], 1), ([5, 4], 2), ([6, 3], 1), ([3, 4, 2], 2)):
            every = [some_of(sizes, sparse, dtype, other) for other in range(size)]
            expected = torch.stack([tensor.to_dense() for tensor in every]).sum(0)
            own = every[rank]
            work = dist.all_reduce(own, async_op=True)
            assert work is not None
            work.wait()
            assert own.is_sparse and own.is_coalesced()
            assert torch.equal(own.to_dense(), expected)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sparse_sums(size: int) -> None:
    run_world(size, sums)


def different_sizes() -> str:
    tensor = torch.eye(2 + dist.get_rank()).to_sparse()
    try:
        dist.all_reduce(tensor)
    except ValueError as error:
        dist.barrier()
        return str(error)
    return "nothing"


def test_sparse_tensors_of_different_sizes_are_refused_and_harm_nobody() -> None:
    for message in run_world(2, different_sizes):
        assert "sparse tensors of different sizes" in message


def outside() -> str:
    """What a rank raises where another has elements outside of the tensor."""
    indices = torch.tensor([[9 if dist.get_rank() == 1 else 1]])
    tensor = torch.sparse_coo_tensor(indices, torch.ones(1), [3], check_invariants=False)
    try:
        dist.all_reduce(tensor)
    except RuntimeError as error:
        dist.barrier()
        return str(error)
    return "nothing"


def test_elements_outside_of_the_tensor_are_refused() -> None:
    for message in run_world(2, outside):
        assert "size is inconsistent with indices" in message


def train_embedding() -> list[list[float]]:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.EmbeddingBag(10, 3, sparse=True, mode="sum")
    data_parallel = DistributedDataParallel(model)
    bags = torch.tensor([[rank, rank + 1], [9, 9]])
    data_parallel(bags).sum().backward()
    gradient = model.weight.grad
    assert gradient is not None and gradient.is_sparse
    expected = torch.zeros(10, 3)
    for other in range(size):
        expected[other] += 1 / size
        expected[other + 1] += 1 / size
        expected[9] += 2 / size
    torch.testing.assert_close(gradient.to_dense(), expected)
    return gradient.to_dense().tolist()


def test_data_parallel_training_of_a_sparse_embedding() -> None:
    first, *others = run_world(3, train_embedding)
    assert all(first == other for other in others)
