"""How the module is compiled, found again, and what is said when it cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from r2ccl.torch import build, locate

COMPILER = """#!{python}
import sys, time
from pathlib import Path
Path({log!r}).open("a").write("compiled\\n")
time.sleep(0.2)
Path(sys.argv[sys.argv.index("-o") + 1]).write_text("module")
sys.exit({code})
"""


def fake_compiler(folder: Path, code: int = 0) -> tuple[Path, Path]:
    """A compiler that writes a line for every run, and the file with the lines."""
    path, log = folder / "compiler", folder / "log"
    path.write_text(COMPILER.format(python=sys.executable, log=str(log), code=code))
    path.chmod(0o755)
    return path, log


def compile_in_process(_: int) -> str:
    """Another process, as another rank would be."""
    code = "from r2ccl.torch import build; print(build.compiled())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    return done.stdout.strip() + "\n" + done.stderr


def test_ranks_that_start_at_once_compile_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, log = fake_compiler(tmp_path)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    with ThreadPoolExecutor(3) as ranks:
        told = [text.split("\n", 1) for text in ranks.map(compile_in_process, range(3))]
    assert len({path for path, _ in told}) == 1
    module = Path(told[0][0])
    assert sum(str(module) in errors for _, errors in told) == 1, "who compiles says so"
    assert module.read_text() == "module"
    assert log.read_text() == "compiled\n"
    # Nothing but the module and its lock stays.
    assert sorted(file.name for file in module.parent.iterdir()) == ["lock", module.name]


def test_without_a_compiler_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match=r"install a C\+\+ compiler"):
        build.compiled()
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    with pytest.raises(build.BuildError, match="no-such-compiler"):
        build.compiled()


def test_a_pytorch_that_is_too_old_is_named_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, log = fake_compiler(tmp_path)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr("torch.__version__", "2.9.1+cpu")
    with pytest.raises(build.BuildError, match=r"needs PyTorch 2\.11 or later, this is 2\.9\.1"):
        build.compiled()
    assert not log.exists()


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, _ = fake_compiler(tmp_path, code=3)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    with pytest.raises(build.BuildError, match="failed"):
        build.compiled()
    left = [file.name for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert left == ["lock"]


def test_a_cache_that_cannot_be_made_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.delenv(build.CACHE_VARIABLE, raising=False)
    for variable in ("XDG_CACHE_HOME", build.CACHE_VARIABLE):
        monkeypatch.setenv(variable, str(blocked))
        with pytest.raises(build.BuildError, match=build.CACHE_VARIABLE):
            build.compiled()


def test_a_user_without_a_home_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("XDG_CACHE_HOME", build.CACHE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(build.BuildError, match=build.CACHE_VARIABLE):
        build.compiled()


def test_other_sources_are_another_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build._name_of_build()
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "module.cpp").write_text("int other;")
    monkeypatch.setattr(build, "_SOURCES", sources)
    assert build._name_of_build() != before


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(locate.LIBRARY_VARIABLE, "/nowhere/libr2ccl.so")
    with pytest.raises(FileNotFoundError, match=r"/nowhere/libr2ccl\.so"):
        locate.library_path()


def test_registration_is_done_once_and_needs_no_compiler() -> None:
    code = (
        "import r2ccl.torch as backend, torch.distributed as dist\n"
        "before = dist.Backend._plugins['R2CCL']\n"
        "backend.register()\n"
        "assert dist.Backend._plugins['R2CCL'] is before\n"
        "assert dist.is_backend_available('r2ccl')\n"
        "assert dist.Backend.default_device_backend_map['cpu'] == 'gloo'\n"
        "assert backend.native.cache_info().currsize == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_an_installed_package_registers_the_backend_with_torch(tmp_path: Path) -> None:
    """As pip would leave it: PyTorch finds the entry points in the metadata of a distribution."""
    metadata = tmp_path / "r2ccl-0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: r2ccl\nVersion: 0.0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\nr2ccl = r2ccl.torch:register\n")
    environment = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    code = "import torch.distributed as dist; assert 'R2CCL' in dist.Backend._plugins"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600, env=environment)
