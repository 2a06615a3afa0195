"""The parts of PyTorch that training uses, on devices: its kernels, and the streams that it overlaps them on.

What they give is compared with what one process computes on the host.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from devices import device, is_imitation
from models import Net, assert_close, redistribute, reference, train, train_sharded
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

if is_imitation():
    pytest.skip(
        "training on CUDA devices: the imitation runs no kernels of PyTorch",
        allow_module_level=True,
    )


def on_host(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.cpu() for tensor in tensors]


def assert_trained(model: nn.Module) -> None:
    """Trains it, and compares its parameters."""
    assert_close(on_host(train(model, device=device())), reference(dist.get_world_size()))


def data_parallel() -> None:
    # Buckets of a few parameters, so that reductions and the backward pass overlap.
    model = DistributedDataParallel(
        Net().to(device()),
        device_ids=[device().index],
        bucket_cap_mb=0.001,
        find_unused_parameters=True,
    )
    assert_trained(model)


@pytest.mark.parametrize("size", [2, 3])
def test_data_parallel_training(size: int) -> None:
    run_world(size, data_parallel)


def large_data_parallel() -> None:
    """Gradients of many buckets that no call with low latency moves; all ranks have the same batch."""
    where = device()
    results = []
    for is_parallel in (False, True):
        torch.manual_seed(0)
        model: nn.Module = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))).to(where)
        if is_parallel:
            model = DistributedDataParallel(model, device_ids=[where.index], bucket_cap_mb=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            generator = torch.Generator().manual_seed(step)
            inputs = torch.randn(16, 512, generator=generator).to(where)
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(on_host([parameter.detach() for parameter in model.parameters()]))
    # Sums of equal numbers and their means are exact for two ranks, and the kernels are the same.
    assert_close(*results)


def test_data_parallel_training_with_large_buckets() -> None:
    run_world(2, large_data_parallel)


def data_parallel_with_hook() -> None:
    model = DistributedDataParallel(
        Net().to(device()), device_ids=[device().index], find_unused_parameters=True
    )
    model.register_comm_hook(None, bf16_compress_hook)
    ours = on_host(train(model, device=device()))
    for one, other in zip(ours, reference(dist.get_world_size()), strict=True):
        torch.testing.assert_close(one, other, atol=0.01, rtol=0.05)


def test_gradients_compressed_by_a_hook() -> None:
    run_world(2, data_parallel_with_hook)


def sharded_training() -> None:
    size = dist.get_world_size()
    mesh = init_device_mesh(device().type, (size,))
    assert_close(on_host(train_sharded(mesh, device())), reference(size))


@pytest.mark.parametrize("size", [2, 3])
def test_fully_sharded_training(size: int) -> None:
    run_world(size, sharded_training)


def redistributed_tensors() -> None:
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    # Not divisible by the number of ranks.
    redistribute(mesh, torch.arange(7 * 5, dtype=torch.float32, device=device()).view(7, 5))


@pytest.mark.parametrize("size", [2, 3])
def test_redistributed_tensors(size: int) -> None:
    run_world(size, redistributed_tensors)
