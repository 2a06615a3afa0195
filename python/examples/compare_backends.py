#!/usr/bin/env python3
"""Measures calls of this backend beside the same calls of another one, in the same processes.

::

    torchrun --nproc-per-node 2 compare_backends.py --other gloo

Both take turns in short rounds, so that what else happens on the machine meets both alike; the
table has the median over all rounds. Results are checked in every round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import grammar
import torch
import torch.distributed as dist
from ddp_train import BUCKET_MB, TEXT_CHARACTERS, Batches, Gpt, Shape, train_on
from torch.nn.parallel import DistributedDataParallel

import r2ccl.torch  # noqa: F401  registers the backend where the package is not installed


SEED = 1

Call = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        name: for the table.
        calls: in one round.
        prepare: makes what calls on a group need, checks a first one, and returns what makes one.
    """

    name: str
    calls: int
    prepare: Callable[[dist.ProcessGroup], Call]


def all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    dist.all_reduce(tensor, group=group)


def all_reduce_async(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    work = dist.all_reduce(tensor, group=group, async_op=True)
    assert work is not None
    work.wait()


def broadcast(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    dist.broadcast(tensor, 0, group=group)


def barrier(_tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    dist.barrier(group=group)


def ping_pong(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    """To rank 1 and back; the others look on."""
    for sender, receiver in ((0, 1), (1, 0)):
        if dist.get_rank() == sender:
            dist.send(tensor, receiver, group=group)
        elif dist.get_rank() == receiver:
            dist.recv(tensor, sender, group=group)


def ordinary(elements: int, _group: dist.ProcessGroup) -> torch.Tensor:
    return torch.empty(elements)


def allocated(elements: int, group: dist.ProcessGroup) -> torch.Tensor:
    """A tensor in memory of the group, if it has any."""
    device = torch.device("cpu")
    backend = group._get_backend(device)
    if not backend.supports_tensor_alloc(device):
        return ordinary(elements, group)
    return backend.allocate_tensor(elements, dtype=torch.float32, device=device)


def on_tensors(
    elements: int,
    run: Callable[[torch.Tensor, dist.ProcessGroup], None],
    make: Callable[[int, dist.ProcessGroup], torch.Tensor] = ordinary,
) -> Callable[[dist.ProcessGroup], Call]:
    """Calls on a tensor of so many float32 on every rank."""

    def prepare(group: dist.ProcessGroup) -> Call:
        tensor = make(elements, group)
        check(tensor, run, group)
        tensor.zero_()
        return lambda: run(tensor, group)

    return prepare


def check(
    tensor: torch.Tensor,
    run: Callable[[torch.Tensor, dist.ProcessGroup], None],
    group: dist.ProcessGroup,
) -> None:
    """Makes a call whose result is known."""
    tensor.fill_(float(dist.get_rank() + 1))
    run(tensor, group)
    size = dist.get_world_size()
    expected = {
        all_reduce: size * (size + 1) / 2,
        all_reduce_async: size * (size + 1) / 2,
        broadcast: 1.0,
    }
    wanted = expected.get(run)
    assert wanted is None or bool((tensor == wanted).all()), f"{run.__name__} is wrong"


def training(group: dist.ProcessGroup) -> Call:
    """Steps of the model of ``ddp_train.py``, as it is by default, with DDP."""
    text = grammar.text(TEXT_CHARACTERS, SEED)
    batches = Batches(text, context=64, size=8, seed=SEED, rank=dist.get_rank())
    torch.manual_seed(SEED)
    shape = Shape(batches.symbols, context=64, width=128, heads=4, layers=4)
    model = DistributedDataParallel(Gpt(shape), process_group=group, bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        train_on(batches.next(), model, optimizer)

    step()
    mine = torch.stack([parameter.detach().double().sum() for parameter in model.parameters()])
    of_rank_0 = mine.clone()
    dist.broadcast(of_rank_0, 0)
    assert torch.equal(mine, of_rank_0), "the ranks train different models"
    return step


CASES = [
    Case("all_reduce, 8 bytes", 300, on_tensors(2, all_reduce)),
    Case("all_reduce, 8 bytes, async_op and wait", 300, on_tensors(2, all_reduce_async)),
    Case("barrier", 300, on_tensors(1, barrier)),
    Case("send and back, 8 bytes", 100, on_tensors(2, ping_pong)),
    Case("all_reduce, 64 KB", 100, on_tensors(16_000, all_reduce)),
    Case("all_reduce, 1 MB", 20, on_tensors(250_000, all_reduce)),
    Case("all_reduce, 1 MB, memory of the group", 20, on_tensors(250_000, all_reduce, allocated)),
    Case("all_reduce, 25 MB", 4, on_tensors(6_250_000, all_reduce)),
    Case("all_reduce, 25 MB, memory of the group", 4, on_tensors(6_250_000, all_reduce, allocated)),
    Case("broadcast, 25 MB", 4, on_tensors(6_250_000, broadcast)),
    Case("broadcast, 25 MB, memory of the group", 4, on_tensors(6_250_000, broadcast, allocated)),
    Case("training step, DDP, 0.8 M parameters", 5, training),
]


def seconds_of_a_call(case: Case, group: dist.ProcessGroup) -> float:
    """One round: seconds for a call, of the slowest rank."""
    call = case.prepare(group)
    call()
    began = time.perf_counter()
    for _ in range(case.calls):
        call()
    mine = torch.tensor([(time.perf_counter() - began) / case.calls], dtype=torch.float64)
    dist.all_reduce(mine, dist.ReduceOp.MAX)
    return mine.item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", default="gloo", help="the backend to compare with")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", default="", help="cases with this in their name")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("r2ccl")
    groups = {name: dist.new_group(backend=name) for name in ("r2ccl", options.other)}
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, median of {options.rounds} rounds, us for a call")
        print(f"{'':40}" + "".join(f"{name:>12}" for name in groups))
    chosen = [case for case in CASES if options.only in case.name]
    for case in chosen:
        rounds: dict[str, list[float]] = {name: [] for name in groups}
        for _ in range(options.rounds):
            for name, group in groups.items():
                rounds[name].append(seconds_of_a_call(case, group))
        medians = "".join(f"{statistics.median(times) * 1e6:12.1f}" for times in rounds.values())
        if dist.get_rank() == 0:
            print(f"{case.name:40}{medians}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
