"""The parts of PyTorch that training uses give the numbers that one process computes, or Gloo."""

from __future__ import annotations

import copy
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from models import (
    STEPS,
    Net,
    assert_close,
    batch,
    redistribute,
    reference,
    train,
    train_sharded,
)
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world


def data_parallel() -> None:
    size = dist.get_world_size()
    buckets = DistributedDataParallel(Net(), bucket_cap_mb=0.001, find_unused_parameters=True)
    assert_close(train(buckets), reference(size))
    gloo = dist.new_group(backend="gloo")
    ours = train(DistributedDataParallel(Net(), find_unused_parameters=True), detours=True)
    theirs = train(
        DistributedDataParallel(Net(), process_group=gloo, find_unused_parameters=True),
        detours=True,
    )
    assert_close(ours, theirs)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_data_parallel_training(size: int) -> None:
    run_world(size, data_parallel)


def data_parallel_with_hook() -> None:
    model = DistributedDataParallel(Net(), find_unused_parameters=True)
    model.register_comm_hook(None, bf16_compress_hook)
    for one, other in zip(train(model), reference(dist.get_world_size()), strict=True):
        torch.testing.assert_close(one, other, atol=0.01, rtol=0.05)


def test_gradients_compressed_by_a_hook() -> None:
    run_world(2, data_parallel_with_hook)


def data_parallel_with_low_ranks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
        PowerSGDState,
        powerSGD_hook,
    )

    results = []
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
        net = Net()
        # All parameters are used, and fit one bucket: ranks make all calls in the same order then.
        net.sometimes = nn.Identity()
        model = DistributedDataParallel(net, process_group=group)
        # Compresses from the third step on, in callbacks that make two collectives each.
        state = PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook)
        results.append(train(model, steps=8))
        assert state.compression_stats()[0] > 1.0
    assert_close(*results)
    for parameter in results[0]:
        of_root = parameter.clone()
        dist.broadcast(of_root, 0)
        assert torch.equal(of_root, parameter)


def test_gradients_of_low_rank() -> None:
    pytest.importorskip("numpy", reason="the hook of PyTorch needs NumPy")
    run_world(2, data_parallel_with_low_ranks, seconds=120.0)


def uneven_inputs() -> float:
    rank = dist.get_rank()
    model = DistributedDataParallel(Net().second, bucket_cap_mb=0.001)
    seen = 0
    with Join([model]):
        for step in range(2 + 3 * rank):
            model(torch.ones(2, 33) * (step + 1)).sum().backward()
            seen += 1
    assert seen == 2 + 3 * rank
    check = model.module.weight.detach().clone()
    dist.all_reduce(check)
    torch.testing.assert_close(check / dist.get_world_size(), model.module.weight.detach())
    return check.sum().item()


def test_ranks_with_fewer_inputs_join() -> None:
    run_world(3, uneven_inputs)


def sharded_training() -> None:
    size = dist.get_world_size()
    assert_close(train_sharded(init_device_mesh("cpu", (size,))), reference(size))


@pytest.mark.parametrize("size", [2, 3])
def test_fully_sharded_training(size: int) -> None:
    run_world(size, sharded_training)


def sharded_optimizer() -> None:
    size = dist.get_world_size()
    results = []
    for make in (
        lambda parameters: ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.01),
        lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    ):
        model = DistributedDataParallel(Net(), find_unused_parameters=True)
        optimizer = make(model.parameters())
        for step in range(STEPS):
            model(batch(dist.get_rank(), step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append([parameter.detach() for parameter in model.parameters()])
    assert_close(*results)
    assert size == 3


def test_optimizer_states_over_all_ranks() -> None:
    run_world(3, sharded_optimizer)


def redistributed_tensors() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    # Not divisible by the number of ranks.
    whole = torch.arange(7 * 5, dtype=torch.float32).view(7, 5)
    rows, columns = redistribute(mesh, whole)
    product = rows @ distribute_tensor(torch.eye(5), mesh, [Replicate()])
    assert torch.equal(product.full_tensor(), whole)
    assert torch.equal((columns @ columns.t()).full_tensor(), whole @ whole.t())


@pytest.mark.parametrize("size", [2, 3])
def test_redistributed_tensors(size: int) -> None:
    run_world(size, redistributed_tensors)


def two_dimensions() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    whole = torch.arange(24.0).view(4, 6)
    placed = distribute_tensor(whole, mesh, [Replicate(), Shard(1)])
    assert placed.to_local().shape == (4, 3)
    assert torch.equal(placed.redistribute(placements=[Shard(0), Shard(1)]).full_tensor(), whole)
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=mesh["shards"].get_group())
    assert tensor.tolist() == [2.0, 2.0, 2.0]


def test_meshes_of_two_dimensions() -> None:
    run_world(4, two_dimensions)


def functional_calls() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    total = float(sum(range(size)))
    tensor = torch.full((size * 2,), float(rank))
    assert functional.all_reduce(tensor, "sum", group).tolist() == [total] * size * 2
    assert functional.all_gather_tensor(tensor[:1], 0, group).tolist() == [
        float(peer) for peer in range(size)
    ]
    assert functional.reduce_scatter_tensor(tensor, "sum", 0, group).tolist() == [total] * 2
    assert functional.broadcast(tensor, 1, group).tolist() == [1.0] * size * 2
    exchanged = functional.all_to_all_single(tensor, None, None, group)
    assert exchanged.view(size, 2)[:, 0].tolist() == [float(peer) for peer in range(size)]
    one, other = functional.all_reduce_coalesced([tensor, tensor[:1]], "max", group)
    assert one[0].item() == other.item() == size - 1


def test_functional_collectives() -> None:
    run_world(3, functional_calls)


def compiled_training(backend: str) -> None:
    model = DistributedDataParallel(Net().first)
    reference_model = copy.deepcopy(model.module)
    compiled = torch.compile(model, backend=backend)
    compiled(batch(dist.get_rank(), 0)).square().mean().backward()
    losses = [
        reference_model(batch(rank, 0)).square().mean() for rank in range(dist.get_world_size())
    ]
    torch.stack(losses).mean().backward()
    torch.testing.assert_close(model.module.weight.grad, reference_model.weight.grad)

    @torch.compile(backend=backend, fullgraph=True)
    def graph(tensor: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1

    assert graph(torch.ones(4)).tolist() == [2.0 * dist.get_world_size() + 1] * 4


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_training(backend: str, tmp_path: Path) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs g++")
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    run_world(2, compiled_training, backend, environment=cache, seconds=900.0)


def saved_and_loaded(folder: str) -> None:
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    model = Net()
    fully_shard(model, mesh=mesh)
    train(model)
    before = [parameter.full_tensor().clone() for parameter in model.parameters()]
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    state = {"model": model.state_dict()}
    checkpoint.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    after = [parameter.full_tensor() for parameter in model.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_checkpoints_of_sharded_models(tmp_path: Path) -> None:
    run_world(2, saved_and_loaded, str(tmp_path / "checkpoint"))


def mapped() -> Iterator[tuple[int, int]]:
    """Where memory that the library has allocated is, as the system says."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:r2ccl-memory" in line:
            low, high = line.split()[0].split("-")
            yield int(low, 16), int(high, 16)


def mapped_bytes() -> int:
    return sum(high - low for low, high in mapped())


def shared_bytes(tensor: torch.Tensor) -> int:
    """How much of a tensor is in memory that the library has allocated."""
    start = tensor.data_ptr()
    end = start + tensor.nbytes
    return sum(max(0, min(end, high) - max(start, low)) for low, high in mapped())


def buckets_in_shared_memory() -> None:
    # Without it, which is the default, DistributedDataParallel does not ask.
    os.environ["DDP_DISABLE_COMM_MEM"] = "0"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 8))
    seen = []

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        seen.append(shared_bytes(buffer) == buffer.nbytes)
        work = dist.all_reduce(buffer, async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0])

    # DistributedDataParallel looks at them, and wants no strings.
    hook.__annotations__ = get_type_hints(hook)
    parallel = DistributedDataParallel(model)
    parallel.register_comm_hook(None, hook)
    values = torch.full((4, 300), 1.0 + dist.get_rank())
    for _ in range(3):
        parallel.zero_grad()
        parallel(values).sum().backward()
    assert len(seen) >= 3 and all(seen), seen
    gradient = model[1].bias.grad
    assert gradient is not None
    assert (gradient == 4 * dist.get_world_size()).all()


def test_buckets_are_where_other_ranks_reach_them() -> None:
    run_world(2, buckets_in_shared_memory)


def parameters_in_shared_memory() -> None:
    results = []
    batch = torch.full((4, 200), 1.0 + dist.get_rank())
    for is_shared in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(200, 200)
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        assert isinstance(model, FSDPModule)
        model.set_allocate_memory_from_process_group_for_comm(is_shared)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = mapped_bytes()
        for _ in range(STEPS):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert (mapped_bytes() > before) == is_shared
        results.append([parameter.full_tensor().detach() for parameter in model.parameters()])
    assert_close(*results)


def test_sharded_parameters_are_where_other_ranks_reach_them() -> None:
    run_world(2, parameters_in_shared_memory)


def tensors_in_shared_memory() -> None:
    cpu = torch.device("cpu")
    backend = dist.group.WORLD._get_backend(cpu)
    assert backend.supports_tensor_alloc(cpu)
    count, ranks = 1 << 18, dist.get_world_size()
    addresses = set()
    for step in range(6):
        one = backend.allocate_tensor(count, dtype=torch.float32, device=cpu)
        assert one.shape == (count,) and one.dtype == torch.float32
        assert shared_bytes(one) == one.nbytes
        addresses.add(one.data_ptr())
        one.fill_(dist.get_rank() + step)
        dist.all_reduce(one)
        assert (one == ranks * (ranks - 1) / 2 + ranks * step).all()
        one.untyped_storage().resize_(0)
        del one
    assert len(addresses) == 1, "what is given back is used again"
    small = backend.allocate_tensor(5, dtype=torch.int8, device=cpu)
    assert small.nbytes == 5 and shared_bytes(small) == 0
    assert backend.allocate_tensor(0, dtype=torch.bool, device=cpu).nbytes == 0
    with pytest.raises(ValueError, match="no memory of meta"):
        backend.allocate_tensor(1 << 20, dtype=torch.int8, device=torch.device("meta"))


def test_tensors_of_the_group_are_where_other_ranks_reach_them() -> None:
    run_world(3, tensors_in_shared_memory)


def tensors_without_shared_memory() -> None:
    cpu = torch.device("cpu")
    backend = dist.group.WORLD._get_backend(cpu)
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    with tempfile.TemporaryFile() as file:
        standard_error = os.dup(2)
        os.dup2(file.fileno(), 2)
        # No file may be that long, not even one without a name.
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, most))
        tensors = [
            backend.allocate_tensor(1 << 18, dtype=torch.float32, device=cpu) for _ in range(2)
        ]
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
        os.dup2(standard_error, 2)
        file.seek(0)
        printed = file.read().decode()
    assert printed.count("tensors are in ordinary memory: ") == 1, printed
    assert "File too large" in printed, printed
    for one in tensors:
        assert shared_bytes(one) == 0
        one.fill_(1)
        dist.all_reduce(one)
        assert (one == dist.get_world_size()).all()


def test_tensors_are_in_ordinary_memory_if_the_system_refuses_other() -> None:
    run_world(2, tensors_without_shared_memory)
