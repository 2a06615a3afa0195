"""Groups and their ends; asynchronous work, objects, barriers."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from worlds import await_end_of_threads, run_world

import r2ccl.torch


def total(value: float, group: dist.ProcessGroup | None = None) -> float:
    tensor = torch.tensor([value])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def asynchronous_work() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    order: list[int] = []
    works = []
    for turn in range(20):
        tensor = torch.full((50_000,), float(rank + turn))
        work = dist.all_reduce(tensor, async_op=True)
        future = work.get_future().then(
            lambda done, turn=turn: order.append(turn) or done.value()[0][0].item()
        )
        works.append((turn, tensor, work, future))
    for turn, tensor, work, future in works:
        expected = float(sum(range(size)) + size * turn)
        assert future.wait() == expected
        assert work.wait()
        assert work.is_completed() and work.is_success()
        assert tensor.tolist() == [expected] * tensor.numel()
        assert work.result()[0] is not None
    assert order == list(range(20))
    assert total(1.0) == size


def test_asynchronous_work_ends_in_order() -> None:
    run_world(3, asynchronous_work)


def synchronous_after_asynchronous() -> None:
    size = dist.get_world_size()
    tensor = torch.ones(100_000)
    work = dist.all_reduce(tensor, async_op=True)
    dist.all_reduce(tensor)
    work.wait()
    assert tensor[0].item() == size * size


def test_a_synchronous_call_waits_for_its_turn() -> None:
    run_world(3, synchronous_after_asynchronous)


def exchanged_objects() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = {"rank": rank, "text": "x" * (100 * rank)}
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, mine)
    assert [one["rank"] for one in gathered] == list(range(size))
    listed = [mine, 3] if rank == 1 else [None, None]
    dist.broadcast_object_list(listed, 1)
    assert listed == [{"rank": 1, "text": "x" * 100}, 3]
    at_root: list[object] | None = [None] * size if rank == 0 else None
    dist.gather_object(mine, at_root)
    assert at_root is None or len(at_root) == size
    received: list[object] = [None]
    dist.scatter_object_list(
        received, [f"for {peer}" for peer in range(size)] if rank == 0 else None
    )
    assert received == [f"for {rank}"]


def test_objects() -> None:
    run_world(3, exchanged_objects)


def groups_of_some_ranks() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    even = dist.new_group(list(range(0, size, 2)))
    odd = dist.new_group(list(range(1, size, 2)), timeout=timedelta(seconds=30))
    mine, members = (even, range(0, size, 2)) if rank % 2 == 0 else (odd, range(1, size, 2))
    assert dist.get_backend(mine) == "r2ccl"
    assert total(float(rank), mine) == sum(members)
    tensor = torch.tensor([float(rank)])
    dist.broadcast(tensor, members[-1], group=mine)
    assert tensor.item() == members[-1]
    assert total(1.0) == size
    dist.destroy_process_group(mine)
    assert total(1.0) == size
    mixed = dist.new_group(backend="gloo")
    assert total(1.0, mixed) == size


def test_groups_of_some_ranks() -> None:
    run_world(4, groups_of_some_ranks)


def ranks_of(group: dist.ProcessGroup) -> list[int]:
    """Its ranks as the backend knows them."""
    options = group._get_backend(torch.device("cpu")).options
    return list(options.global_ranks_in_group)


def split_groups() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    assert dist.group.WORLD is not None
    part = dist.split_group(dist.group.WORLD, [[0, 1], [2, 3]])
    assert part is not None
    neighbour = rank ^ 1
    assert dist.get_world_size(part) == 2
    assert total(float(rank), part) == rank + neighbour
    # Ranks of a part of a part are named as in the job too.
    assert ranks_of(part) == sorted([rank, neighbour])
    alone = dist.split_group(part, [[0], [1]])
    assert alone is not None and ranks_of(alone) == [rank]
    # A rank that is in no part takes part nevertheless.
    few = dist.split_group(dist.group.WORLD, [[0, 2]])
    assert (few is not None and not isinstance(few, int)) == (rank in (0, 2))
    if rank in (0, 2):
        assert total(float(rank), few) == 2.0
    work = dist.all_reduce(torch.ones(10), async_op=True)
    work.wait()
    assert total(1.0) == size


def test_split_groups() -> None:
    run_world(4, split_groups)


def pair_of_all() -> None:
    size = dist.get_world_size()
    pair = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        assert total(1.0, pair) == 2.0
    assert total(1.0) == size


def test_subgroups_with_the_debug_wrapper() -> None:
    run_world(3, pair_of_all, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})


def bound_to_a_device() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("bound", dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    device = torch.device("cpu", 0)
    dist.init_process_group("r2ccl", store=store, rank=rank, world_size=size, device_id=device)
    pair_of_all()


def test_subgroups_of_a_group_that_is_bound_to_a_device() -> None:
    run_world(3, bound_to_a_device)


def barriers() -> None:
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    dist.monitored_barrier(timeout=timedelta(seconds=60), wait_all_ranks=True)


def test_barriers() -> None:
    run_world(3, barriers)


def many_monitored_barriers() -> None:
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    keys = store.num_keys()
    dist.barrier()
    for _ in range(5):
        dist.monitored_barrier(timeout=timedelta(seconds=60))
    # All ranks have left the last one.
    dist.barrier()
    assert store.num_keys() == keys


def test_monitored_barriers_leave_nothing_in_the_store() -> None:
    run_world(3, many_monitored_barriers)


def barrier_without_some() -> str:
    if dist.get_rank() in (1, 3):
        return ""
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=True)
    except RuntimeError as error:
        return str(error)
    return "nothing"


def test_a_monitored_barrier_names_who_is_missing() -> None:
    messages = run_world(4, barrier_without_some)
    for rank in (0, 2):
        assert "Ranks 1, 3 failed to pass monitoredBarrier in 1000 ms" in messages[rank]
    assert "Rank 2 successfully reached monitoredBarrier" in messages[2]


def barrier_without_time() -> str:
    group = dist.new_group()
    if dist.get_rank() == 0:
        try:
            group.monitored_barrier(timedelta(0))
        except RuntimeError as error:
            return str(error)
    return "nothing"


def test_a_monitored_barrier_without_time_is_a_timeout() -> None:
    assert "Rank 0 timed out in monitoredBarrier" in run_world(2, barrier_without_time)[0]


def facts() -> None:
    group = dist.group.WORLD
    assert group is not None
    assert dist.get_backend() == "r2ccl"
    backend = group._get_backend(torch.device("cpu"))
    assert backend.name() == "r2ccl"
    assert backend.options._timeout == timedelta(seconds=77)
    assert backend.supports_splitting and backend.supports_coalescing
    before = group._get_sequence_number_for_group()
    dist.barrier()
    assert group._get_sequence_number_for_group() == before + 1
    rails = r2ccl.torch.health()
    assert {rail.rank for rail in rails} == set(range(dist.get_world_size()))
    assert all(rail.state is r2ccl.torch.RailState.UP for rail in rails)


def test_what_a_group_tells_about_itself() -> None:
    run_world(2, facts, timeout=77.0)


def ended_and_begun_again(turns: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    for turn in range(turns):
        assert total(1.0) == size
        dist.destroy_process_group()
        await_end_of_threads()
        fresh = dist.PrefixStore(f"again {turn}", store)
        dist.init_process_group("r2ccl", store=fresh, rank=rank, world_size=size)


def test_groups_end_and_begin_again_without_a_trace() -> None:
    run_world(2, ended_and_begun_again, 5, seconds=90.0)


def begun_again_in_the_same_store(turns: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("same", dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    for turn in range(turns):
        if turn > 0 and rank == 0:
            # The others have come by then, and find what the last group has left.
            store.wait([f"{turn}: rank {peer}" for peer in range(1, size)])
            time.sleep(0.5)
        store.set(f"{turn}: rank {rank}", "1")
        dist.init_process_group(
            "r2ccl", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30)
        )
        assert total(1.0) == size
        message = torch.tensor([float(turn)])
        if rank == 0:
            dist.send(message, 1)
        elif rank == 1:
            received = torch.zeros(1)
            dist.recv(received, 0)
            assert received.item() == turn
        pair_of_all()
        dist.monitored_barrier(timeout=timedelta(seconds=30))
        dist.destroy_process_group()


def test_groups_begin_again_in_the_same_store() -> None:
    run_world(3, begun_again_in_the_same_store, 3, seconds=120.0)


def begun_again_after_one_was_late() -> str:
    rank, size = dist.get_rank(), dist.get_world_size()
    default = dist.distributed_c10d._get_default_store()

    def begin(seconds: int) -> None:
        # Without PyTorch, which counts how often a rank has begun.
        backend = r2ccl.torch.native().Backend(
            store=dist.PrefixStore("late", default),
            rank=rank,
            size=size,
            timeout=timedelta(seconds=seconds),
            name="late",
            global_ranks=list(range(size)),
        )
        backend.barrier(dist.BarrierOptions()).wait()

    message = ""
    if rank == 1:
        default.wait(["gave up"])
    else:
        with pytest.raises(dist.DistBackendError) as caught:
            begin(1)
        message = str(caught.value)
        default.set("gave up", "1")
    begin(30)
    return message


def test_a_rank_that_has_given_up_may_come_again() -> None:
    message = run_world(2, begun_again_after_one_was_late, seconds=90.0)[0]
    assert "only 1 of 2 ranks have come within 1000 ms" in message


def patience_of_centuries() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    centuries = timedelta(days=200_000)
    backend = r2ccl.torch.native().Backend(
        store=dist.PrefixStore("patient", dist.distributed_c10d._get_default_store()),
        rank=rank,
        size=size,
        timeout=centuries,
        name="patient",
        global_ranks=list(range(size)),
    )
    x = torch.ones(1)
    assert backend.allreduce([x], dist.AllreduceOptions()).wait(centuries)
    assert x.item() == size
    message = backend.send([x], 1, 0) if rank == 0 else backend.recv([x], 0, 0)
    message.wait(centuries)
    dist.monitored_barrier(timeout=centuries)
    backend.shutdown()


def test_timeouts_may_be_longer_than_clocks_count() -> None:
    run_world(2, patience_of_centuries)


def ended_with_work_under_way() -> None:
    tensors = [torch.ones(200_000) for _ in range(5)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    dist.destroy_process_group()
    assert all(tensor[0].item() == 2.0 for tensor in tensors)
    assert all(work is not None and work.wait() for work in works)


def test_work_under_way_is_finished_when_its_group_is_destroyed() -> None:
    run_world(2, ended_with_work_under_way)


def aborted() -> str:
    rank = dist.get_rank()
    if rank == 0:
        torch.zeros(1)
        dist.distributed_c10d._abort_process_group()
        return ""
    try:
        dist.all_reduce(torch.ones(1))
    except dist.DistBackendError as error:
        return str(error)
    return "nothing"


def test_an_abort_ends_the_calls_of_the_others() -> None:
    assert "rank 0" in run_world(2, aborted)[1]
