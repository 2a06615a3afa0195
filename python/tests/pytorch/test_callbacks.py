"""Callbacks on calls: what they may start and wait for, and what becomes of those on calls that expired."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from worlds import die, names_of_threads, outcomes_of, run_world


def started(late: int, name: str) -> torch.futures.Future[list[torch.Tensor]]:
    """The future of a sum of ones that rank ``late`` starts when the others have a callback on theirs.

    They say so with :func:`followed`.
    """
    if dist.get_rank() == late:
        dist.distributed_c10d._get_default_store().wait([f"{name} followed"])
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    assert work is not None
    return work.get_future()


def followed(name: str) -> None:
    dist.distributed_c10d._get_default_store().set(f"{name} followed", "1")


def collectives_in_callbacks(late: int) -> None:
    size = dist.get_world_size()

    def nested(name: str, depth: int) -> float:
        """What the innermost callback has summed: each waits for the next one."""

        def callback(done: torch.futures.Future[list[torch.Tensor]]) -> float:
            tensor = done.value()[0]
            work = dist.all_reduce(tensor, async_op=True)
            assert work is not None
            tensor = work.get_future().wait()[0]
            dist.all_reduce(tensor)
            if depth > 0:
                return nested(f"{name}/{depth}", depth - 1)
            return tensor[0].item()

        future = started(late, name).then(callback)
        if dist.get_rank() != late:
            followed(name)
        return future.wait()

    for depth in range(3):
        assert nested(f"depth {depth}", depth) == size**3
    after = torch.ones(1)
    dist.all_reduce(after)
    assert after.item() == size


@pytest.mark.parametrize("late", [0, 1])
def test_callbacks_start_collectives_and_wait_for_them(late: int) -> None:
    run_world(2, collectives_in_callbacks, late, seconds=60.0)


def chain_of_callbacks() -> None:
    size = dist.get_world_size()

    def again(done: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
        work = dist.all_reduce(done.value()[0], async_op=True)
        assert work is not None
        return work.get_future().wait()

    future = started(1, "chain").then(again).then(again)
    if dist.get_rank() == 0:
        followed("chain")
    assert future.wait()[0].tolist() == [float(size**3)] * 1000


def test_a_chain_of_callbacks_makes_a_collective_each() -> None:
    run_world(2, chain_of_callbacks, seconds=60.0)


def callback_that_waits_for_the_next_call() -> None:
    first = started(1, "first")
    after = torch.ones(10)
    second = dist.all_reduce(after, async_op=True)
    assert second is not None
    future = first.then(lambda _: second.wait() and after[0].item())
    if dist.get_rank() == 0:
        followed("first")
    assert future.wait() == dist.get_world_size()


def test_a_callback_may_wait_for_a_call_that_was_made_before() -> None:
    run_world(2, callback_that_waits_for_the_next_call, seconds=60.0)


def callback_that_waits_in_vain() -> str:
    store = dist.distributed_c10d._get_default_store()
    future = started(1, "vain")
    if dist.get_rank() == 1:
        future.wait()
        store.wait(["noticed"])
        return ""
    dist.set_timeout(timedelta(seconds=2))
    waiting = future.then(lambda _: dist.all_reduce(torch.ones(1)))
    followed("vain")
    try:
        waiting.wait()
        return "nothing"
    except RuntimeError as error:
        return str(error)
    finally:
        store.set("noticed", "yes")


def test_a_callback_that_waits_in_vain_has_a_timeout() -> None:
    message = run_world(2, callback_that_waits_in_vain, seconds=60.0)[0]
    assert "did not finish within 2000 ms" in message


def group_that_ends_in_a_callback() -> str:
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group()
    if dist.get_rank() == 1:
        store.wait(["ended"])
        return ""
    assert group is not None
    backend = group._get_backend(torch.device("cpu"))
    dist.set_timeout(timedelta(seconds=1), group)
    work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
    assert work is not None

    def end(late: torch.futures.Future[list[torch.Tensor]]) -> str:
        with pytest.raises(RuntimeError) as caught:
            late.value()
        backend.shutdown()
        return str(caught.value)

    message = work.get_future().then(end).wait()
    with pytest.raises(dist.DistBackendError, match="aborted or destroyed"):
        dist.all_reduce(torch.ones(1), group=group)
    store.set("ended", "1")
    return message


def test_a_callback_on_a_call_that_expired_may_end_its_group() -> None:
    message = run_world(2, group_that_ends_in_a_callback, seconds=60.0)[0]
    assert "did not finish within 1000 ms" in message


def callback_that_waits_behind_a_deadline() -> str:
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["noticed"])
        return ""
    dist.set_timeout(timedelta(seconds=1))
    work = dist.irecv(torch.ones(1), 1, tag=1)
    assert work is not None
    waiting = work.get_future().then(lambda _: dist.recv(torch.ones(1), 1, tag=2))
    with pytest.raises(RuntimeError) as caught:
        waiting.wait()
    store.set("noticed", "1")
    return str(caught.value)


def test_a_callback_on_a_message_that_expired_may_wait_for_another() -> None:
    message = run_world(2, callback_that_waits_behind_a_deadline, seconds=60.0)[0]
    assert "with tag 2 did not finish within 1000 ms" in message


def backend_of_world() -> Any:
    assert dist.group.WORLD is not None
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def ended_while_a_callback_runs() -> None:
    dist.set_timeout(timedelta(seconds=1))
    told = []

    def callback(_: torch.futures.Future[list[torch.Tensor]]) -> None:
        # Others have the interpreter meanwhile.
        for _ in range(1_000_000):
            pass
        told.append("it has run")

    work = dist.irecv(torch.ones(1), 1 - dist.get_rank())
    assert work is not None
    work.get_future().then(callback)
    with pytest.raises(dist.DistBackendError):
        work.wait()
    backend_of_world().shutdown()
    assert told == ["it has run"]


def test_the_end_of_a_group_waits_for_callbacks_on_calls_that_expired() -> None:
    run_world(2, ended_while_a_callback_runs, seconds=60.0)


def many_expire_at_once() -> None:
    dist.set_timeout(timedelta(seconds=1))
    last = threading.Event()
    works = [dist.irecv(torch.ones(1), 1 - dist.get_rank(), tag=tag) for tag in range(100)]
    told = [work.get_future().then(lambda _: last.wait(60.0)) for work in works if work]
    for work in works:
        with pytest.raises(dist.DistBackendError):
            work.wait()
    # One more for every second in which none of them ends.
    assert 1 <= sum(name.startswith("r2ccl-expired") for name in names_of_threads()) <= 50
    last.set()
    assert all(future.wait() for future in told)


def test_callbacks_on_calls_that_expire_at_once_share_a_few_threads() -> None:
    run_world(2, many_expire_at_once, seconds=60.0)


def many_wait_for_the_last() -> None:
    dist.set_timeout(timedelta(seconds=1))
    last = threading.Event()
    works = [dist.irecv(torch.ones(1), 1 - dist.get_rank(), tag=tag) for tag in range(20)]
    *others, final = [work.get_future() for work in works if work]
    final.then(lambda _: last.set())
    told = [future.then(lambda _: last.wait()) for future in others]
    assert all(future.wait() for future in told)


def test_any_number_of_callbacks_on_calls_that_expired_may_wait_for_another() -> None:
    run_world(2, many_wait_for_the_last, seconds=60.0)


def callback_that_waits_for_its_block() -> str:
    dist.set_timeout(timedelta(seconds=1))
    other = 1 - dist.get_rank()
    manager = dist.distributed_c10d._coalescing_manager
    with manager(device=torch.device("cpu"), async_ops=True) as block:
        works = [dist.irecv(torch.ones(1), other, tag=tag) for tag in range(2)]
    told = [work.get_future().then(lambda _: block.wait()) for work in works if work]
    with pytest.raises(RuntimeError) as caught:
        torch.futures.wait_all(told)
    return str(caught.value)


def test_a_callback_on_a_message_that_expired_may_wait_for_its_block() -> None:
    for message in run_world(2, callback_that_waits_for_its_block, seconds=60.0):
        assert "did not finish within 1000 ms" in message


def callback_that_waits_behind_a_loss() -> str:
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), 0)
        store.wait(["followed"])
        die()
    dist.send(torch.ones(1), 1)
    # Too large to be sent before they are received.
    first, second = [dist.isend(torch.ones(10_000_000), 1, tag=tag) for tag in (5, 6)]
    assert first is not None and second is not None
    waiting = first.get_future().then(lambda _: second.wait())
    store.set("followed", "1")
    with pytest.raises(RuntimeError) as caught:
        waiting.wait()
    return str(caught.value)


def test_a_callback_on_a_message_to_the_dead_may_wait_for_another() -> None:
    message = outcomes_of(2, callback_that_waits_behind_a_loss, seconds=60.0)[0].value
    assert "send to rank 1 with tag 6" in message


def ended_while_a_callback_waits() -> None:
    dist.set_timeout(timedelta(seconds=1))
    begun, ended = threading.Event(), threading.Event()
    work = dist.irecv(torch.ones(1), 1 - dist.get_rank())
    assert work is not None
    told = work.get_future().then(lambda _: begun.set() or ended.wait(60.0))
    assert begun.wait(60.0)
    backend_of_world().shutdown()
    ended.set()
    assert told.wait()


def test_a_group_ends_although_a_callback_on_a_call_that_expired_does_not() -> None:
    run_world(2, ended_while_a_callback_waits, seconds=50.0)
