"""What all tests of the backend need: PyTorch, and the compiled module."""

from __future__ import annotations

import os

import pytest

# Ranks outnumber processors, and take turns best with one thread each.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

torch = pytest.importorskip("torch", reason="there is no PyTorch; setup_torch.py installs one")


@pytest.fixture(scope="session", autouse=True)
def compiled_backend() -> None:
    """Compiles the module before any rank has a deadline."""
    from r2ccl.torch import build

    build.compiled()
