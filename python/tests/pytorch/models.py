"""A model that the tests train, and what one process computes for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

STEPS = 4


class Net(nn.Module):
    """Small, with a part that only some inputs use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 33)
        self.second = nn.Linear(33, 8)
        self.sometimes = nn.Linear(8, 8)

    def forward(self, batch: torch.Tensor, detour: bool = False) -> torch.Tensor:
        hidden = self.second(torch.relu(self.first(batch)))
        return self.sometimes(hidden) if detour else hidden


def batch(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 8, generator=generator)


def train(
    model: nn.Module,
    steps: int = STEPS,
    detours: bool = False,
    device: torch.device | None = None,
) -> list[torch.Tensor]:
    """The parameters of a model after some steps, on the device where it is."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        detour = detours and (step + dist.get_rank()) % 2 == 0
        inputs = batch(dist.get_rank(), step).to(device)
        model(inputs, detour).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


def reference(ranks: int, steps: int = STEPS) -> list[torch.Tensor]:
    """What one process computes from the batches of all ranks, without the detour."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        losses = [model(batch(rank, step)).square().mean() for rank in range(ranks)]
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


def assert_close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def train_sharded(mesh: DeviceMesh, device: torch.device | None = None) -> list[torch.Tensor]:
    """The whole parameters of a model whose layers and rest are sharded, after some steps."""
    model = Net().to(device)
    for layer in (model.first, model.second, model.sometimes):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, device=device)
    return [parameter.full_tensor().detach() for parameter in model.parameters()]


def redistribute(mesh: DeviceMesh, whole: torch.Tensor) -> tuple[DTensor, DTensor]:
    """Spreads a matrix over all ranks in every way, and returns it by rows and by columns."""
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(placements=[Shard(1)])
    assert torch.equal(columns.full_tensor(), whole)
    assert torch.equal(columns.redistribute(placements=[Replicate()]).to_local(), whole)
    summed = DTensor.from_local(whole, mesh, [Partial()])
    total = whole * dist.get_world_size()
    assert torch.equal(summed.redistribute(placements=[Shard(0)]).full_tensor(), total)
    return rows, columns
