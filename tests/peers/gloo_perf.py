"""Measures collectives of Gloo, through PyTorch, by the conventions of nccl-tests.

    gloo_perf.py RANKS OPERATION BYTES:UNTIMED:TIMED...

The counterpart of mpi_perf.c, with the same output: "BYTES MICROSECONDS WRONG" for each size. The
ranks are forked after PyTorch has been imported, and meet over the loopback interface. all_reduce
and broadcast work in place, which is the only form that PyTorch has.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time

import torch
import torch.distributed as distributed

ELEMENT_BYTES = 4
BLOCK_ELEMENTS = 4  # Blocks are whole multiples of 16 bytes, as in nccl-tests.
PERIOD = 251  # Inputs repeat after so many elements.


def input_of(rank, first, count):
    """Elements `first`..`first + count` of the input of `rank`: small whole numbers."""
    return ((torch.arange(first, first + count) + 17 * rank) % PERIOD).float()


def sum_of_inputs(ranks, first, count):
    """The sum of the inputs of all ranks."""
    return sum((input_of(rank, first, count) for rank in range(ranks)), torch.zeros(count))


class AllReduce:
    """Every rank gets the sum."""

    divided = False

    def __init__(self, rank, ranks, count):
        self.data = input_of(rank, 0, count)
        self.expected = sum_of_inputs(ranks, 0, count)

    def call(self):
        distributed.all_reduce(self.data)

    def output(self):
        return self.data


class Broadcast:
    """Every rank gets the data of rank 0."""

    divided = False

    def __init__(self, rank, ranks, count):
        self.data = input_of(0, 0, count) if rank == 0 else torch.full((count,), -1.0)
        self.expected = input_of(0, 0, count)

    def call(self):
        distributed.broadcast(self.data, 0)

    def output(self):
        return self.data


class OutOfPlace:
    """What the collectives with two buffers have in common."""

    divided = True

    def output(self):
        return self.receive


class AllGather(OutOfPlace):
    """Every rank gets the blocks of all ranks."""

    def __init__(self, rank, ranks, count):
        self.send = input_of(rank, 0, count)
        self.receive = torch.full((ranks * count,), -1.0)
        self.expected = torch.cat([input_of(source, 0, count) for source in range(ranks)])

    def call(self):
        distributed.all_gather_into_tensor(self.receive, self.send)


class ReduceScatter(OutOfPlace):
    """A rank gets its block of the sum."""

    def __init__(self, rank, ranks, count):
        self.send = input_of(rank, 0, ranks * count)
        self.receive = torch.full((count,), -1.0)
        self.expected = sum_of_inputs(ranks, rank * count, count)

    def call(self):
        distributed.reduce_scatter_tensor(self.receive, self.send)


class AllToAll(OutOfPlace):
    """A rank gets its block of every rank."""

    def __init__(self, rank, ranks, count):
        self.send = input_of(rank, 0, ranks * count)
        self.receive = torch.full((ranks * count,), -1.0)
        blocks = [input_of(source, rank * count, count) for source in range(ranks)]
        self.expected = torch.cat(blocks)

    def call(self):
        distributed.all_to_all_single(self.receive, self.send)


COLLECTIVES = {
    "all_reduce": AllReduce,
    "all_gather": AllGather,
    "reduce_scatter": ReduceScatter,
    "broadcast": Broadcast,
    "alltoall": AllToAll,
}


def size_of(text):
    """Bytes, and numbers of calls."""
    size_bytes, untimed, timed = map(int, text.split(":"))
    return size_bytes, untimed, timed


def count_of(collective, ranks, size_bytes):
    """The count for a size, as nccl-tests divides it."""
    elements = size_bytes // ELEMENT_BYTES
    if collective.divided:
        elements = elements // ranks // BLOCK_ELEMENTS * BLOCK_ELEMENTS
    return elements


def total(value):
    """The sum of `value` over the ranks."""
    tensor = torch.tensor([value], dtype=torch.float64)
    distributed.all_reduce(tensor)
    return tensor.item()


def measure(collective, ranks, warm_up, iterations):
    """Microseconds of a call and the number of wrong elements of all ranks."""
    collective.call()
    wrong = total(float((collective.output() != collective.expected).sum()))
    # Sums in place grow until they are infinite, which is no slower; lines of zeros would be quick on some processors.
    collective.output().fill_(1)
    for _ in range(warm_up):
        collective.call()
    distributed.barrier()
    start = time.perf_counter()
    for _ in range(iterations):
        collective.call()
    own = (time.perf_counter() - start) / iterations
    distributed.barrier()
    return total(own) / ranks * 1e6, int(wrong)


def member(rank, ranks, meeting, operation, sizes):
    """A rank's part of the benchmark."""
    torch.set_num_threads(1)
    store = distributed.FileStore(meeting, ranks)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    kind = COLLECTIVES[operation]
    for size_bytes, warm_up, iterations in sizes:
        collective = kind(rank, ranks, count_of(kind, ranks, size_bytes))
        microseconds, wrong = measure(collective, ranks, warm_up, iterations)
        if rank == 0:
            print(size_bytes, f"{microseconds:.3f}", wrong, flush=True)
    distributed.destroy_process_group()


def main():
    """Runs all ranks; the exit status says whether all of them ended well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", metavar="RANKS", type=int)
    parser.add_argument("operation", metavar="OPERATION", choices=COLLECTIVES, help="one of " + ", ".join(COLLECTIVES))
    parser.add_argument("sizes", metavar="BYTES:UNTIMED:TIMED", type=size_of, nargs="+", help="numbers of calls")
    options = parser.parse_args()
    ranks = options.ranks
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as directory:
        meeting = os.path.join(directory, "meeting")
        arguments = (ranks, meeting, options.operation, options.sizes)
        processes = [fork.Process(target=member, args=(rank, *arguments)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    sys.exit(any(process.exitcode for process in processes))


if __name__ == "__main__":
    main()
