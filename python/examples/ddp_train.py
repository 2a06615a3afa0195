#!/usr/bin/env python3
"""Trains a small GPT on several ranks, with DDP or FSDP2, over r2ccl or another backend.

On one machine::

    torchrun --nproc-per-node 2 ddp_train.py --backend r2ccl --steps 50

On several, with ``torchrun --nnodes ...`` as usual. Rank 0 prints the loss and the speed; with the
same seed and number of ranks the loss is the same, whatever the backend. What happens to the rails
on the way is printed too, and changes neither the loss nor the end.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grammar
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

TEXT_CHARACTERS = 60_000
BUCKET_MB = 1


@dataclass(frozen=True)
class Shape:
    """The size of the model.

    Attributes:
        symbols: different characters.
        context: characters that it looks back on.
        width: of the vectors between its layers, a multiple of ``heads``.
        heads: of the attention.
        layers: blocks of attention and perceptron.
    """

    symbols: int
    context: int
    width: int
    heads: int
    layers: int


class Block(nn.Module):
    """Attention to what came before, then a perceptron."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before_attention = nn.LayerNorm(shape.width)
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.projection = nn.Linear(shape.width, shape.width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(shape.width),
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, length, width) to the same shape."""
        batch, length, width = x.shape
        split = self.query_key_value(self.before_attention(x)).view(
            batch, length, 3, self.heads, -1
        )
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.perceptron(x)


class Gpt(nn.Module):
    """Predicts the next character."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.symbols = nn.Embedding(shape.symbols, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.head = nn.Sequential(nn.LayerNorm(shape.width), nn.Linear(shape.width, shape.symbols))

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Maps numbers of characters, (batch, length), to logits, (batch, length, symbols)."""
        places = torch.arange(characters.shape[1], device=characters.device)
        x = self.symbols(characters) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Batches:
    """Random pieces of the text, different on every rank and the same for the same seed."""

    def __init__(self, text: str, context: int, size: int, seed: int, rank: int) -> None:
        alphabet = sorted(set(text))
        numbers = {character: number for number, character in enumerate(alphabet)}
        self.symbols = len(alphabet)
        self._text = torch.tensor([numbers[character] for character in text])
        self._context = context
        self._size = size
        self._source = torch.Generator().manual_seed(seed * 10_007 + rank)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Characters and those that follow them, both (size, context)."""
        starts = torch.randint(
            len(self._text) - self._context, (self._size,), generator=self._source
        )
        pieces = torch.stack([self._text[start : start + self._context + 1] for start in starts])
        return pieces[:, :-1], pieces[:, 1:]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="r2ccl", help="of torch.distributed: r2ccl, gloo, ...")
    parser.add_argument(
        "--mode", choices=["ddp", "fsdp"], default="ddp", help="copies of the model, or shards"
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=8, help="sequences for each rank and step")
    parser.add_argument("--context", type=int, default=64, help="characters of a sequence")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of each rank for arithmetic"
    )
    parser.add_argument("--log-every", type=int, default=10, help="steps between two lines")
    parser.add_argument(
        "--json", type=Path, help="rank 0 writes losses and times of all steps to this file"
    )
    parser.add_argument(
        "--record", type=Path, help="rank 0 writes to this file as it goes; see class Record"
    )
    return parser.parse_args()


class Record:
    """What rank 0 writes as it goes: one JSON object in each line, or nothing without a file.

    A step is a line with its number, the bits of its loss as ``float.hex`` writes them, and when it
    began and ended; a rail that fails or returns is one with what is known of it, and when rank 0
    was told; the last line has the SHA-256 of all parameters. Times are nanoseconds of
    ``CLOCK_MONOTONIC``.
    """

    def __init__(self, path: Path | None) -> None:
        mine = path is not None and dist.get_rank() == 0
        # Without a buffer a line is one call of the kernel, whichever thread writes it.
        self._file = path.open("wb", buffering=0) if path is not None and mine else None

    def is_kept(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def write(self, **fields: Any) -> None:
        """Adds a line."""
        if self._file is not None:
            self._file.write(json.dumps(fields).encode() + b"\n")

    def close(self) -> None:
        """Writes no more."""
        if self._file is not None:
            self._file.close()


def distributed(model: Gpt, mode: str) -> nn.Module:
    """The model as all ranks train it together."""
    if mode == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def mean_of_all(value: float) -> float:
    """The mean over all ranks."""
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor)
    return tensor.item() / dist.get_world_size()


def digest_of(model: nn.Module) -> str:
    """The SHA-256 of the parameters, or of the shards of them, that this rank has."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        digest.update(local.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def faults_told(backend: str, record: Record) -> Iterator[None]:
    """While it lasts, rank 0 prints and writes down what happens to the rails."""
    if backend != "r2ccl" or dist.get_rank() != 0:
        yield
        return
    import r2ccl.torch

    def show(rail: r2ccl.torch.RailHealth, _before: r2ccl.torch.RailHealth | None) -> None:
        why = "" if rail.state is r2ccl.torch.RailState.UP else f": {rail.evidence}"
        print(
            f"rank {rail.rank} rail {rail.rail} is {rail.state.name.lower()}{why}", file=sys.stderr
        )
        names = {"state": rail.state.name, "verdict": rail.verdict.name}
        record.write(at_ns=time.monotonic_ns(), **{**asdict(rail), **names})

    watch = r2ccl.torch.on_fault(None, show)
    try:
        yield
    finally:
        watch.stop()


def progress(steps: int) -> Any:
    """The numbers of the steps, with a bar where tqdm is installed and somebody looks."""
    if dist.get_rank() == 0 and sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            from tqdm import tqdm

            return tqdm(range(steps), unit="step")
    return range(steps)


def train_on(
    batch: tuple[torch.Tensor, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer
) -> float:
    """Trains on a batch of this rank, together with those of the others, and returns its loss."""
    characters, following = batch
    logits = model(characters)
    loss = functional.cross_entropy(logits.flatten(0, 1), following.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def train(options: argparse.Namespace, record: Record) -> list[dict[str, float]]:
    """Trains, and returns loss and seconds of every step."""
    rank, size = dist.get_rank(), dist.get_world_size()
    text = grammar.text(TEXT_CHARACTERS, options.seed)
    batches = Batches(text, options.context, options.batch, options.seed, rank)
    torch.manual_seed(options.seed)
    gpt = Gpt(Shape(batches.symbols, options.context, options.width, options.heads, options.layers))
    if rank == 0:
        parameters = sum(parameter.numel() for parameter in gpt.parameters())
        print(
            f"{size} ranks, {options.backend}, {options.mode}, {parameters} parameters", flush=True
        )
    model = distributed(gpt, options.mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    history = []
    for step in progress(options.steps):
        began_ns = time.monotonic_ns()
        loss = mean_of_all(train_on(batches.next(), model, optimizer))
        ended_ns = time.monotonic_ns()
        record.write(step=step, loss=loss.hex(), began_ns=began_ns, ended_ns=ended_ns)
        seconds = (ended_ns - began_ns) / 1e9
        history.append({"step": step, "loss": loss, "seconds": seconds})
        if rank == 0 and (step + 1) % options.log_every == 0:
            speed = size * options.batch * options.context / seconds
            print(f"step {step + 1:5d}  loss {loss:.6f}  {speed:9.0f} tokens/s", flush=True)
    if record.is_kept():
        record.write(parameters=digest_of(model))
    return history


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    if options.backend == "r2ccl":
        import r2ccl.torch  # noqa: F401  registers the backend where the package is not installed
    dist.init_process_group(options.backend)
    record = Record(options.record)
    try:
        with faults_told(options.backend, record):
            history = train(options, record)
        if dist.get_rank() == 0 and options.json is not None:
            report = {**vars(options), "json": None, "record": None, "history": history}
            options.json.write_text(json.dumps(report))
    finally:
        record.close()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
