"""What all tests on devices need: PyTorch with devices, and the compiled module.

The devices may be real ones, or the imitation of the driver: then ``LD_PRELOAD`` has what ``cudart.py`` has made, and
``LD_LIBRARY_PATH`` the folder of the imitation. Nothing here launches a kernel of PyTorch, which the imitation cannot.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pytorch"))

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

torch = pytest.importorskip("torch", reason="there is no PyTorch; setup_torch.py installs one")

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)


@pytest.fixture(scope="session", autouse=True)
def compiled_backend() -> None:
    """Compiles the module before any rank has a deadline."""
    from r2ccl.torch import build

    build.compiled()
