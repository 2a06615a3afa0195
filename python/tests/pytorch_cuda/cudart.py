#!/usr/bin/env python3
"""Makes CUDA's runtime for the tests of tensors on devices: ``cudart.c``, and stubs of all else::

    python3 cudart.py FOLDER

Whoever has ``FOLDER/libcudart.so.13`` in ``LD_PRELOAD`` uses it instead of the one that PyTorch finds. Run by
the Python whose PyTorch is meant; needs cc, readelf and nm.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pytorch"))
import cuda_stubs

SOURCE = Path(__file__).with_name("cudart.c")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    wanted = cuda_stubs.wants_of(sorted(cuda_stubs.torch_folder().glob("*.so")), set())
    library = next(name for name in wanted.libraries if name.startswith("libcudart."))
    functions = wanted.functions_of(library)
    real = set(re.findall(r"^(?:Error|const char \*)\s?(cuda\w+)\(", SOURCE.read_text(), re.M))
    cuda_stubs.compile_stub(
        folder / library, functions - real, wanted.versions[library], SOURCE.read_text()
    )
    print(folder / library)


if __name__ == "__main__":
    main()
