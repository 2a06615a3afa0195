"""The examples, started as the documentation says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# What a process says in which a thread of Gloo still holds tensors when the interpreter ends, which happens
# after about one training in a hundred.
GLOO_ABORTS = "terminate called without an active exception"
ATTEMPTS = 4
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SECONDS = 900


def torchrun(ranks: int, script: str, *options: str) -> str:
    """What a script prints on its ranks. None of them is left when it returns or raises."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    agent = subprocess.Popen(
        [*launcher, f"--nproc-per-node={ranks}", str(EXAMPLES / script), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        printed, said = agent.communicate(timeout=SECONDS)
    finally:
        # Asked to end, it ends its ranks first.
        agent.terminate()
        agent.wait()
    assert agent.returncode == 0, printed + said
    return printed


def torchrun_with_gloo(ranks: int, script: str, *options: str) -> str:
    """The same where Gloo is used: once more if that is how it ended."""
    for _ in range(ATTEMPTS - 1):
        try:
            return torchrun(ranks, script, *options)
        except AssertionError as failure:
            if GLOO_ABORTS not in str(failure):
                raise
    return torchrun(ranks, script, *options)


def losses(folder: Path, backend: str, *options: str) -> list[float]:
    """The losses of a short training on two ranks."""
    run = torchrun_with_gloo if backend == "gloo" else torchrun
    report = folder / "report.json"
    small = [
        "--steps",
        "5",
        "--width",
        "32",
        "--layers",
        "2",
        "--context",
        "16",
        "--log-every",
        "1",
    ]
    printed = run(
        2, "ddp_train.py", *small, "--json", str(report), "--backend", backend, *options
    )
    history: list[dict[str, Any]] = json.loads(report.read_text())["history"]
    assert f"loss {history[-1]['loss']:.6f}" in printed
    return [step["loss"] for step in history]


def test_training_gives_the_same_losses_on_any_backend_and_with_shards(tmp_path: Path) -> None:
    ours = losses(tmp_path, "r2ccl")
    assert ours == losses(tmp_path, "gloo")
    assert ours[-1] < ours[0]
    assert losses(tmp_path, "r2ccl", "--mode", "fsdp") == pytest.approx(ours, rel=1e-4)
    assert losses(tmp_path, "r2ccl", "--seed", "2") != ours


def test_the_comparison_of_backends_runs() -> None:
    printed = torchrun_with_gloo(2, "compare_backends.py", "--rounds", "1")
    assert "all_reduce, 8 bytes" in printed and "training step" in printed
