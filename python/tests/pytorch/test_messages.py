"""Point-to-point messages: tags, order, any source, and what must not deadlock."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import numpy
import pytest
import torch
import torch.distributed as dist
from worlds import run_world

LARGE = 300_000
"""Elements of a message that does not fit into any buffer on the way."""

HOSTS = [{}, {"R2CCL_SHM": "0", "R2CCL_RAILS": "127.0.0.2,127.0.0.3"}]
"""All ranks on one host, or each on one of its own, with two rails between any two."""


def block(rank: int, tag: int, count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int64) * 1000 + 10 * rank + tag


def exchange_of_large_messages() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    peers = [peer for peer in range(size) if peer != rank]
    sent = [dist.isend(block(rank, peer, LARGE), peer) for peer in peers]
    received = [torch.empty(LARGE, dtype=torch.int64) for _ in peers]
    for peer, tensor in zip(peers, received, strict=True):
        dist.recv(tensor, peer)
        assert torch.equal(tensor, block(peer, rank, LARGE))
    for work in sent:
        work.wait()


@pytest.mark.parametrize("environment", HOSTS, ids=["one host", "several hosts"])
def test_everybody_sends_before_anybody_receives(environment: dict[str, str]) -> None:
    run_world(3, exchange_of_large_messages, environment=environment)


def last_message() -> None:
    """The sender ends its group as soon as it may use its tensor again."""
    if dist.get_rank() == 0:
        dist.send(block(0, 0, LARGE), 1)
    else:
        received = torch.empty(LARGE, dtype=torch.int64)
        dist.recv(received, 0)
        assert torch.equal(received, block(0, 0, LARGE))


@pytest.mark.parametrize("environment", HOSTS, ids=["one host", "several hosts"])
def test_the_last_message_arrives_although_its_sender_is_gone(environment: dict[str, str]) -> None:
    run_world(2, last_message, environment=environment)


def messages_of_all_sizes() -> None:
    rank = dist.get_rank()
    for count in (0, 1, 30, 31, 1000, LARGE):
        tensor = block(0, 7, count)
        if rank == 0:
            dist.send(tensor, 1)
        else:
            received = torch.empty_like(tensor)
            assert dist.recv(received, 0) == 0
            assert torch.equal(received, tensor), count


def test_messages_of_all_sizes() -> None:
    run_world(2, messages_of_all_sizes)


def messages_with_tags() -> None:
    rank = dist.get_rank()
    tags = [5, 1, 2**31 - 1, 0]
    for count in (3, 40_000):
        if rank == 0:
            for tag in tags:
                dist.send(block(0, tag, count), 1, tag=tag)
                dist.send(block(0, tag + 1, count), 1, tag=tag)
            continue
        for tag in reversed(tags):
            for turn in (0, 1):
                received = torch.empty(count, dtype=torch.int64)
                dist.recv(received, 0, tag=tag)
                assert torch.equal(received, block(0, tag + turn, count)), (tag, turn)


def test_tags_choose_among_messages_and_keep_their_order() -> None:
    run_world(2, messages_with_tags)


def messages_that_wait_for_room() -> None:
    """Two messages with a tag that nobody waits for yet are more than the receiver keeps."""
    rank = dist.get_rank()
    large = torch.full((160 << 20,), rank, dtype=torch.uint8)
    if rank != 0:
        first = dist.isend(large, 0, tag=1)
        dist.send(large[:1], 0, tag=9)
        first.wait()
        return
    behind = [torch.zeros(1, dtype=torch.uint8) for _ in range(2)]
    one, other = (dist.irecv(tensor, tag=9) for tensor in behind)
    one.wait()
    # However long that takes, there is no room for the other message.
    time.sleep(1.0)
    assert not other.is_completed()
    sender = int(behind[0].item())
    # That makes room for the message of the other rank, and then for what is behind it.
    dist.recv(large, sender, tag=1)
    assert bool((large == sender).all())
    other.wait()
    assert behind[1].item() == 3 - sender
    dist.recv(large, 3 - sender, tag=1)
    assert bool((large == 3 - sender).all())


def test_messages_wait_until_there_is_room_for_them() -> None:
    run_world(3, messages_that_wait_for_room, seconds=90.0)


def messages_from_anybody() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    rounds = 5
    if rank != 0:
        for turn in range(rounds):
            dist.send(block(rank, turn, 100), 0, tag=turn)
        return
    for turn in range(rounds):
        senders = set()
        for _ in range(size - 1):
            received = torch.empty(100, dtype=torch.int64)
            sender = dist.recv(received, tag=turn)
            assert torch.equal(received, block(sender, turn, 100))
            senders.add(sender)
        assert senders == set(range(1, size))


def test_messages_from_any_source() -> None:
    run_world(4, messages_from_anybody)


def ring_of_batches() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    received = [torch.empty(LARGE, dtype=torch.int64), torch.empty(3, dtype=torch.int64)]
    operations = [
        dist.P2POp(dist.irecv, received[0], left),
        dist.P2POp(dist.irecv, received[1], left),
        dist.P2POp(dist.isend, block(rank, 0, LARGE), right),
        dist.P2POp(dist.isend, block(rank, 1, 3), right),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert torch.equal(received[0], block(left, 0, LARGE))
    assert torch.equal(received[1], block(left, 1, 3))


def test_batches_go_round() -> None:
    run_world(3, ring_of_batches)


def refused_batch() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    wrong = [
        dist.P2POp(dist.isend, block(rank, 0, 3), right),
        dist.P2POp(dist.isend, block(rank, 0, 3), rank),
        dist.P2POp(dist.isend, block(rank, 1, 3), right),
    ]
    for _ in range(2):
        with pytest.raises(ValueError, match=f"{rank} is not another rank of a group of {size}"):
            dist.batch_isend_irecv(wrong)
    # Neither later collectives nor later batches know of it. What came before the refusal is on its way.
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [float(size)] * 3
    received = [torch.empty(3, dtype=torch.int64) for _ in range(3)]
    operations = [dist.P2POp(dist.irecv, tensor, left) for tensor in received]
    operations.append(dist.P2POp(dist.isend, block(rank, 2, 3), right))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for tensor, tag in zip(received, (0, 0, 2), strict=True):
        assert torch.equal(tensor, block(left, tag, 3))


def test_a_refused_batch_is_an_error_and_the_group_goes_on() -> None:
    run_world(3, refused_batch)


def left_block() -> None:
    """What raises in a block before PyTorch has called the backend leaves the block open."""
    rank, size = dist.get_rank(), dist.get_world_size()
    manager = dist.distributed_c10d._coalescing_manager
    with pytest.raises(KeyError):
        with manager(device=torch.device("cpu"), async_ops=True):
            raise KeyError
    received = torch.empty(3, dtype=torch.int64)
    with manager(device=torch.device("cpu"), async_ops=True) as block_of_messages:
        dist.irecv(received, (rank - 1) % size)
        dist.isend(block(rank, 0, 3), (rank + 1) % size)
    block_of_messages.wait()
    assert torch.equal(received, block((rank - 1) % size, 0, 3))


def test_a_block_that_was_left_by_an_exception_gives_way_to_the_next() -> None:
    run_world(2, left_block)


def block_beside_another_thread() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    received, late = (torch.empty(3, dtype=torch.int64) for _ in range(2))
    manager = dist.distributed_c10d._coalescing_manager
    with ThreadPoolExecutor(1) as executor:
        with manager(device=torch.device("cpu"), async_ops=True) as block_of_messages:
            dist.irecv(received, left)
            dist.isend(block(rank, 0, 3), right)
            other = executor.submit(dist.irecv, late, left, tag=1).result()
        # It is of the messages of its own thread alone.
        block_of_messages.wait()
    assert torch.equal(received, block(left, 0, 3))
    dist.send(block(rank, 1, 3), right, tag=1)
    other.wait()
    assert torch.equal(late, block(left, 1, 3))


def test_a_block_is_of_the_thread_that_has_begun_it() -> None:
    run_world(2, block_beside_another_thread, seconds=60.0)


def tensors_of_blocks_of_threads_that_have_ended() -> None:
    assert dist.group.WORLD is not None
    group, cpu = dist.group.WORLD, torch.device("cpu")
    kept: list[weakref.ref[object]] = []

    def leave() -> None:
        array = numpy.ones(1, dtype=numpy.float32)
        kept.append(weakref.ref(array))
        group._start_coalescing(cpu)
        group.allreduce([torch.from_numpy(array)]).wait()

    for _ in range(3):
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    # Nobody can end them any more, and what begins a block forgets them. Threads end a little after who joins them is told.
    while any(array() is not None for array in kept):
        group._start_coalescing(cpu)
        group._end_coalescing(cpu).wait()


def test_blocks_of_threads_that_have_ended_keep_no_tensors() -> None:
    run_world(2, tensors_of_blocks_of_threads_that_have_ended, seconds=60.0)


def block_of_a_thread_that_has_ended() -> None:
    assert dist.group.WORLD is not None
    group, other = dist.group.WORLD, (dist.get_rank() + 1) % dist.get_world_size()
    left: list[int] = []
    refused: list[bool] = []

    def leave() -> None:
        left.append(threading.get_ident())
        group._start_coalescing(torch.device("cpu"))

    def refuse() -> None:
        if threading.get_ident() not in left:
            return
        try:
            dist.irecv(torch.empty(1).expand(3), other)
            refused.append(False)
        except ValueError:
            refused.append(True)

    # The system soon gives the id of a thread that has ended to a new one.
    for _ in range(1000):
        for target in (leave, refuse):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        if refused:
            break
    # In a block its end would say it.
    assert refused == [True]


def test_a_block_that_an_exception_has_left_ends_with_its_thread() -> None:
    run_world(2, block_of_a_thread_that_has_ended, seconds=60.0)


def collectives_beside_a_message() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.empty(10, dtype=torch.int64)
    pending = dist.irecv(received, 1) if rank == 0 else None
    total = torch.ones(1000)
    dist.all_reduce(total)
    assert total[0].item() == size
    if rank == 1:
        dist.send(block(1, 0, 10), 0)
    if pending is not None:
        pending.wait()
        assert torch.equal(received, block(1, 0, 10))


def test_a_message_that_has_not_come_does_not_hold_up_collectives() -> None:
    run_world(2, collectives_beside_a_message)


def asynchronous_collective_before_a_message() -> None:
    """Rank 1 joins the collective only after the message that rank 0 sends after starting it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total, note = torch.ones(4), torch.zeros(1)
    if rank == 0:
        work = dist.all_reduce(total, async_op=True)
        dist.send(note + 5, 1)
        work.wait()
    else:
        dist.recv(note, 0)
        dist.all_reduce(total)
        assert note.item() == 5
    assert total.tolist() == [float(size)] * 4


def test_an_asynchronous_collective_does_not_hold_up_its_caller() -> None:
    run_world(2, asynchronous_collective_before_a_message)


def message_of_another_size() -> str:
    if dist.get_rank() == 0:
        dist.send(torch.zeros(3), 1)
        dist.send(torch.ones(2), 1)
        return ""
    try:
        dist.recv(torch.zeros(2), 0)
        return "nothing"
    except ValueError as error:
        after = torch.zeros(2)
        dist.recv(after, 0)
        assert after.tolist() == [1.0, 1.0]
        return str(error)


def test_a_message_of_another_size_is_an_error_and_the_next_one_arrives() -> None:
    assert (
        "sent 12 bytes with tag 0, but the tensor to receive them has 8"
        in run_world(2, message_of_another_size)[1]
    )


def message_that_never_comes() -> str:
    if dist.get_rank() != 0:
        dist.monitored_barrier(timeout=timedelta(seconds=60))
        return ""
    dist.set_timeout(timedelta(seconds=3))
    pending = dist.irecv(torch.zeros(1), 1, tag=9)
    try:
        pending.wait(timedelta(seconds=0.2))
    except dist.DistBackendError as error:
        early = str(error)
    try:
        pending.wait()
    except dist.DistBackendError as error:
        late = str(error)
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    return early + "|" + late


def test_a_message_that_never_comes_is_an_error_within_the_timeout() -> None:
    early, late = run_world(2, message_that_never_comes)[0].split("|")
    assert "did not finish within 200 ms" in early
    assert "receive from rank 1 with tag 9 did not finish within 3000 ms" in late


def aborted_while_sending() -> str:
    store = dist.distributed_c10d._get_default_store()
    message = block(0, 0, LARGE)
    if dist.get_rank() == 0:
        dist.send(message[:1], 1)
        work = dist.isend(message, 1)
        dist.distributed_c10d._abort_process_group()
        store.set("aborted", "1")
        assert work is not None
        with pytest.raises(dist.DistBackendError):
            work.wait()
        return ""
    dist.recv(torch.empty_like(message[:1]), 0)
    with contextlib.suppress(dist.DistStoreError):
        store.wait(["aborted"], timedelta(seconds=5))
    # An abort that waits for messages would deliver this one.
    with pytest.raises(dist.DistBackendError) as caught:
        dist.recv(torch.empty_like(message), 0)
    return str(caught.value)


def test_an_abort_does_not_wait_for_messages() -> None:
    assert "receive from rank 0" in run_world(2, aborted_while_sending)[1]


def objects_and_strided_tensors() -> None:
    rank = dist.get_rank()
    objects = [{"step": 3}, "text", None] if rank == 0 else [None, None, None]
    table = torch.arange(20).view(4, 5)
    if rank == 0:
        dist.send_object_list(objects, 1)
        dist.send(table.t(), 1)
        return
    dist.recv_object_list(objects, 0)
    assert objects == [{"step": 3}, "text", None]
    received = torch.zeros(4, 5, dtype=torch.int64)
    dist.recv(received.t(), 0)
    assert torch.equal(received, table)


def test_objects_and_strided_tensors() -> None:
    run_world(2, objects_and_strided_tensors)
