"""The package: one shared object with two interfaces, a header, entry points, and types that are true."""

from __future__ import annotations

import ast
import ctypes
import importlib.metadata
import inspect
import pathlib
import re
import subprocess
import sys

import pytest

import r2ccl
from r2ccl import _native


def header() -> str:
    return (r2ccl.include_path() / "r2ccl" / "ccl.h").read_text(encoding="utf-8")


def test_the_library_has_the_whole_c_interface() -> None:
    library = ctypes.CDLL(str(r2ccl.library_path()))
    code = re.sub(r"/\*.*?\*/", "", header(), flags=re.DOTALL)
    functions = set(re.findall(r"\b(ccl_\w+)\(", code))
    assert len(functions) > 40
    assert [name for name in sorted(functions) if not hasattr(library, name)] == []
    version = ctypes.c_int()
    assert library.ccl_get_version(ctypes.byref(version)) == 0
    major, minor, patch = (int(part) for part in r2ccl.__version__.split("."))
    assert version.value == 10000 * major + 100 * minor + patch


def test_versions_agree() -> None:
    assert importlib.metadata.version("r2ccl") == r2ccl.__version__
    assert f"#define CCL_MAJOR {r2ccl.__version__.split('.')[0]}\n" in header()


def test_pytorch_finds_its_backend() -> None:
    for group in ("torch.distributed.backends", "torch.backends"):
        (entry,) = importlib.metadata.entry_points(group=group, name="r2ccl")
        assert entry.value == "r2ccl.torch:register"


def test_the_package_is_complete() -> None:
    package = pathlib.Path(r2ccl.__file__).parent
    for name in ("py.typed", "_native.pyi", "include/r2ccl/ccl.h"):
        assert (package / name).is_file(), name
    assert set(r2ccl.__all__) <= set(dir(r2ccl))
    for name in r2ccl.__all__:
        assert name == "__version__" or inspect.getdoc(getattr(r2ccl, name)), name


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, r2ccl; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.strip() == "[]"


def stub_classes() -> dict[str, dict[str, list[str]]]:
    """The classes of the stub: their members, and the parameters of these."""
    stub = pathlib.Path(r2ccl.__file__).parent / "_native.pyi"
    classes: dict[str, dict[str, list[str]]] = {}
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            members = classes[node.name] = {}
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    members[member.name] = parameters(member)
                elif isinstance(member, ast.AnnAssign):
                    assert isinstance(member.target, ast.Name)
                    members[member.target.id] = []
    return classes


def parameters(function: ast.FunctionDef) -> list[str]:
    """The names of the parameters, without the object itself, keywords with a star."""
    arguments = function.args
    names = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
    decorators = [one.id for one in function.decorator_list if isinstance(one, ast.Name)]
    names = names if "staticmethod" in decorators else names[1:]
    return names + ["*" + argument.arg for argument in arguments.kwonlyargs]


def real_parameters(member: object) -> list[str]:
    names = []
    for name, parameter in inspect.signature(member).parameters.items():  # type: ignore[arg-type]
        if name not in ("self", "cls"):
            star = "*" if parameter.kind is inspect.Parameter.KEYWORD_ONLY else ""
            names.append(star + name)
    return names


def test_the_stubs_are_the_binary() -> None:
    classes = stub_classes()
    real = {name for name in dir(_native) if inspect.isclass(getattr(_native, name))}
    assert set(classes) == real
    for name, members in classes.items():
        kind = getattr(_native, name)
        public = {one for one in vars(kind) if not one.startswith("_")}
        assert {one for one in members if not one.startswith("_")} == public, name
        for member, expected in members.items():
            value = inspect.getattr_static(kind, member)
            if callable(getattr(kind, member)) and not member.startswith("__"):
                assert real_parameters(getattr(kind, member)) == expected, f"{name}.{member}"
            assert value is not None
        if "__new__" in members:
            assert real_parameters(kind) == members["__new__"], name


def test_the_type_checker_agrees(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy.stubtest", "--concise", "r2ccl._native"]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=600, cwd=tmp_path
    )
    assert result.returncode == 0, result.stdout + result.stderr
