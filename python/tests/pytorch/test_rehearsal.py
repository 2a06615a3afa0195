"""A rail that dies on purpose, by ``R2CCL_FAULT``, while a model is trained."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

import r2ccl.torch
from r2ccl.torch import RailHealth, RailState, RailVerdict

SECONDS = 120.0
WIDTH = 256

RAILS = {"R2CCL_RAILS": "127.0.0.2,127.0.0.3"}

# Again and again: the first time may pass unnoticed on a machine that is busy.
FAULT = "flap:host=0,rail=1,at=200ms,times=50,period=2s,fault=carrier"


def new_group(fault: str) -> dist.ProcessGroup:
    """A group of all ranks, each on a host of its own, that rehearses a fault."""
    os.environ["R2CCL_HOST_ID"] = f"host of rank {dist.get_rank()}"
    os.environ["R2CCL_FAULT"] = fault
    return dist.new_group()


def train(group: dist.ProcessGroup, goes_on: Callable[[int], bool]) -> list[float]:
    """The losses of this rank, one for each step; begins step n while ``goes_on(n)``."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    model = DistributedDataParallel(layers, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses: list[float] = []
    while goes_on(len(losses)):
        loss = model(torch.randn(8, WIDTH, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def is_off(rail: RailHealth) -> bool:
    """Whether a card is known to have lost its carrier; a busy machine may notice its silence first."""
    return rail.state is RailState.DOWN and rail.verdict is RailVerdict.LOCAL_NIC


def train_until_a_rail_died_and_returned() -> tuple[list[float], list[RailHealth]]:
    """The losses, and what was told about the rail that dies."""
    group = new_group(FAULT)
    told: list[RailHealth] = []
    watch = r2ccl.torch.on_fault(group, lambda now, before: told.append(now))
    deadline = time.monotonic() + SECONDS

    def goes_on(step: int) -> bool:
        assert time.monotonic() < deadline, f"the rail did not die and return: {told}"
        known = [rail for rail in told if (rail.rank, rail.rail) == (0, 1)]
        is_over = any(is_off(rail) for rail in known) and known[-1].state is RailState.UP
        missing = torch.tensor([int(not is_over)])
        dist.all_reduce(missing, group=group)
        return missing.item() > 0

    losses = train(group, goes_on)
    watch.stop()
    dist.destroy_process_group(group)
    return losses, told


def compare_with_and_without_the_fault() -> list[RailHealth]:
    losses, told = train_until_a_rail_died_and_returned()
    assert losses == train(new_group(""), lambda step: step < len(losses))
    return told


def test_a_rehearsed_fault_is_seen_and_does_not_change_the_losses() -> None:
    for told in run_world(2, compare_with_and_without_the_fault, environment=RAILS):
        assert {(rail.rank, rail.rail) for rail in told} <= {(0, 1), (1, 1)}
        off = [rail for rail in told if is_off(rail)]
        assert off and all(rail.rank == 0 and "R2CCL_FAULT" in rail.evidence for rail in off)
