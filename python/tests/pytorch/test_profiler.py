"""What a profiler shows of calls: their names, and the shapes of what goes into them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from worlds import run_world

Shapes = list[list[int]]


def every_call(rank: int, size: int) -> None:
    is_root = rank == 0
    dist.all_reduce(torch.ones(2, 3))
    dist.broadcast(torch.ones(3), 0)
    dist.reduce(torch.ones(4), 0)
    dist.all_gather([torch.zeros(5) for _ in range(size)], torch.ones(5))
    dist.gather(torch.ones(6), [torch.zeros(6) for _ in range(size)] if is_root else None)
    dist.scatter(torch.ones(7), [torch.zeros(7) for _ in range(size)] if is_root else None)
    dist.reduce_scatter_tensor(torch.zeros(8), torch.ones(8 * size))
    dist.all_to_all_single(torch.zeros(9 * size), torch.ones(9 * size))
    if is_root:
        dist.send(torch.ones(10), 1)
        dist.send(torch.ones(11), 1)
    elif rank == 1:
        dist.recv(torch.zeros(10), 0)
        dist.recv(torch.zeros(11))


def profiled() -> dict[str, Shapes]:
    rank, size = dist.get_rank(), dist.get_world_size()
    with torch.autograd.profiler.profile(record_shapes=True) as profiler:
        every_call(rank, size)
    events = [event for event in profiler.function_events if event.name.startswith("r2ccl:")]
    assert all(event.is_async for event in events)
    return {event.name.removeprefix("r2ccl:"): event.input_shapes for event in events}


def test_a_profiler_shows_the_shapes_of_what_goes_in() -> None:
    everywhere = {
        "all_reduce": [[2, 3]],
        "broadcast": [[3]],
        "reduce": [[4]],
        "all_gather": [[5]],
        "gather": [[6]],
        "reduce_scatter": [[24]],
        "all_to_all": [[27]],
    }
    root, second, third = run_world(3, profiled)
    assert root == everywhere | {"scatter": [[7]] * 3, "send": [[11]]}
    assert second == everywhere | {"scatter": [], "recv": [[10]], "recvAnySource": [[11]]}
    assert third == everywhere | {"scatter": []}


def gathered_at_once() -> list[Shapes]:
    rank, size = dist.get_rank(), dist.get_world_size()
    outputs = [[torch.zeros(2), torch.zeros(3)] for _ in range(size)]
    inputs = [torch.full((2,), float(rank)), torch.full((3,), rank + 0.5)]
    with torch.autograd.profiler.profile(record_shapes=True) as profiler:
        dist.all_gather_coalesced(outputs, inputs)
    for other, (first, second) in enumerate(outputs):
        assert first.tolist() == [other] * 2 and second.tolist() == [other + 0.5] * 3
    events = [event for event in profiler.function_events if event.name.startswith("r2ccl:")]
    return [event.input_shapes for event in events]


def test_a_coalesced_gather_is_one_call() -> None:
    for shapes in run_world(3, gathered_at_once):
        assert shapes == [[[2], [3]]]
