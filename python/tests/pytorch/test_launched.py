"""A program that ``r2ccl run`` starts as ranks. ``CCL_TEST_LAUNCHER``, which ``cargo test`` sets, names the command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SECONDS = 300

PROGRAM = """
import torch
import torch.distributed as dist
import r2ccl.torch

dist.init_process_group("r2ccl")
total = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(total)
assert total.tolist() == [3.0] * 1000
rails = sorted((rail.rank, rail.rail) for rail in r2ccl.torch.health())
assert rails == [(0, 0), (0, 1), (1, 0), (1, 1)], rails
print(f"rank {dist.get_rank()} of {dist.get_world_size()} is done")
dist.destroy_process_group()
"""


def test_ranks_of_r2ccl_run_are_a_group_with_the_hosts_and_rails_that_they_pretend() -> None:
    launcher = os.environ.get("CCL_TEST_LAUNCHER")
    if launcher is None:
        pytest.skip("CCL_TEST_LAUNCHER does not name the command r2ccl")
    line = [launcher, "run", "-n", "2", "--hosts", "2", "--rails", "2", "--"]
    ended = subprocess.run(
        [*line, sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    # Lines of two processes may run into each other.
    for rank in (0, 1):
        assert f"rank {rank} of 2 is done" in ended.stdout, ended.stdout
