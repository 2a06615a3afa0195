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

import torch
import torch.distributed as dist

import r2ccl.torch  # noqa: F401  registers the backend where the package is not installed


@dataclass(frozen=True)
class Case:
    """A call that is measured.

    Attributes:
        name: for the table.
        elements: of float32 in the tensor of every rank.
        calls: in one round.
        run: makes one call.
    """

    name: str
    elements: int
    calls: int
    run: Callable[[torch.Tensor, dist.ProcessGroup], None]


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


CASES = [
    Case("all_reduce, 8 bytes", 2, 300, all_reduce),
    Case("all_reduce, 8 bytes, async_op and wait", 2, 300, all_reduce_async),
    Case("barrier", 1, 300, barrier),
    Case("send and back, 8 bytes", 2, 100, ping_pong),
    Case("all_reduce, 64 KB", 16_000, 100, all_reduce),
    Case("all_reduce, 1 MB", 250_000, 20, all_reduce),
    Case("all_reduce, 25 MB", 6_250_000, 4, all_reduce),
    Case("broadcast, 25 MB", 6_250_000, 4, broadcast),
]


def seconds_of_a_call(case: Case, group: dist.ProcessGroup) -> float:
    """One round: seconds for a call, of the slowest rank."""
    tensor = torch.zeros(case.elements)
    case.run(tensor, group)
    began = time.perf_counter()
    for _ in range(case.calls):
        case.run(tensor, group)
    mine = torch.tensor([(time.perf_counter() - began) / case.calls], dtype=torch.float64)
    dist.all_reduce(mine, dist.ReduceOp.MAX)
    check(case, group)
    return mine.item()


def check(case: Case, group: dist.ProcessGroup) -> None:
    tensor = torch.full((case.elements,), float(dist.get_rank() + 1))
    case.run(tensor, group)
    size = dist.get_world_size()
    expected = {
        all_reduce: size * (size + 1) / 2,
        all_reduce_async: size * (size + 1) / 2,
        broadcast: 1.0,
    }
    wanted = expected.get(case.run)
    assert wanted is None or bool((tensor == wanted).all()), f"{case.name} is wrong"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", default="gloo", help="the backend to compare with")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("r2ccl")
    groups = {name: dist.new_group(backend=name) for name in ("r2ccl", options.other)}
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, median of {options.rounds} rounds, us for a call")
        print(f"{'':40}" + "".join(f"{name:>12}" for name in groups))
    for case in CASES:
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
