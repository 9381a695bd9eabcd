"""Finding and reading the modules that code imports."""

import ast
from pathlib import Path

import pytest

from tpuport.lint import source
from tpuport.lint.abstract_values import Class, External, Function, Module, Value
from tpuport.lint.modules import ModuleInfo
from tpuport.lint.project import Binding, Project


def write(root: Path, **files: str) -> None:
    """Files by their paths without `.py`."""
    for name, text in files.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def opened(project: Project, path: Path) -> ModuleInfo:
    return project.add(source.read(path, str(path)))


@pytest.fixture
def project() -> Project:
    return Project()


def described(value: Value | ast.expr | None) -> str:
    if isinstance(value, ast.expr):
        return f"expression {ast.unparse(value)}"
    if isinstance(value, Binding):
        return f"binding {value.module.name}.{value.name}"
    if isinstance(value, Function | Class):
        return f"{type(value).__name__.lower()} {value.info.module.name}.{value.info.qualname}"
    if isinstance(value, Module):
        return f"module {value.info.name}"
    return f"external {value.name}" if isinstance(value, External) else str(value)


PACKAGE = {
    "pkg/__init__": "from .ops import f as exported\nfrom . import ops\nVERSION = '1'\n",
    "pkg/ops": "def f(): pass\nclass C: pass\nTABLE = [1]\n_private = 2\n",
    "pkg/stars": "from .ops import *\nfrom torch.nn import *\n",
    "pkg/sub/__init__": "",
    "pkg/sub/deep": "from ..ops import C\n",
}
MAIN = """
import torch.nn.functional as F
import numpy, os
import pkg, pkg.ops
import pkg.ops as operations
import absent, absent.part as part
from absent import thing
from absent.part import other
from pkg import exported, VERSION, sub, nothing
from pkg.ops import f, TABLE
from pkg.sub.deep import C
from pkg.stars import TABLE as starred, Linear, _private as private
from torch import nn

LOCAL = 3

def own(): pass
"""


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("LOCAL", "expression 3"),
        ("own", "function main.own"),
        ("F", "external torch.nn.functional"),
        ("nn", "external torch.nn"),
        ("numpy", "external numpy"),
        ("os", "external os"),
        ("pkg", "module pkg"),
        ("operations", "module pkg.ops"),
        ("absent", "external absent"),
        ("part", "external absent.part"),
        ("thing", "external absent.thing"),
        ("other", "external absent.part.other"),
        ("exported", "function pkg.ops.f"),
        ("VERSION", "binding pkg.VERSION"),
        ("sub", "module pkg.sub"),
        ("nothing", "external pkg.nothing"),
        ("f", "function pkg.ops.f"),
        ("TABLE", "binding pkg.ops.TABLE"),
        ("C", "class pkg.ops.C"),
        ("starred", "binding pkg.ops.TABLE"),
        ("Linear", "external torch.nn.Linear"),
        ("private", "external pkg.stars._private"),
        ("unheard_of", "None"),
    ],
)
def test_names(tmp_path: Path, project: Project, name: str, meaning: str) -> None:
    write(tmp_path, **PACKAGE, main=MAIN)
    main = opened(project, tmp_path / "main.py")
    assert described(project.lookup(main, name)) == meaning


@pytest.mark.parametrize("builtin", ["int", "float", "len", "isinstance", "print", "super", "tuple"])
def test_a_star_of_torch_gives_no_builtin(tmp_path: Path, project: Project, builtin: str) -> None:
    write(tmp_path, main="from torch import *\n")
    assert project.lookup(opened(project, tmp_path / "main.py"), builtin) is None


def test_a_star_of_torch_gives_what_torch_has_of_these_names(tmp_path: Path, project: Project) -> None:
    write(tmp_path, main="from torch import *\n")
    assert described(project.lookup(opened(project, tmp_path / "main.py"), "max")) == "external torch.max"


def test_a_package_that_gathers_many_modules_by_stars_is_not_searched(
    tmp_path: Path, project: Project
) -> None:
    parts = {f"part{n}": f"X{n} = {n}\n" for n in range(50)}
    write(
        tmp_path,
        **parts,
        many="".join(f"from part{n} import *\n" for n in range(50)),
        one="from part3 import *\n",
    )
    assert project.lookup(opened(project, tmp_path / "many.py"), "X3") is None
    assert described(project.lookup(opened(project, tmp_path / "one.py"), "X3")) == "binding part3.X3"
    assert project.dependencies([str(tmp_path / "many.py")]) == {
        str(tmp_path / "many.py"), str(tmp_path / "__init__.py"),
    }  # fmt: skip


@pytest.mark.parametrize(
    "name", ["torch.nn", "numpy", "os.path", "json", "transformer_engine_x", "", "x" * 300, "é" * 200]
)
def test_what_is_not_followed(tmp_path: Path, project: Project, name: str) -> None:
    write(tmp_path, **{"main": "", "torch/nn": "X = 1\n", "numpy": "X = 1\n", "json": "X = 1\n"})
    assert project.module(name, opened(project, tmp_path / "main.py")) is None


def test_the_same_name_from_two_places(tmp_path: Path, project: Project) -> None:
    """Scripts in two directories each have a `utils` of their own."""
    write(tmp_path, **{f"{place}/{name}": "" for place in "ab" for name in ("main", "utils")})
    for place in "ab":
        main = opened(project, tmp_path / place / "main.py")
        found = project.module("utils", main)
        assert found is not None
        assert found.path == tmp_path / place / "utils.py"


def test_a_file_is_read_once_while_it_is_kept(
    tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, a="", b="", c="", main="")
    main = opened(project, tmp_path / "main.py")
    assert project.module("a", main) is project.module("a", main)
    monkeypatch.setattr("tpuport.lint.project._MAX_MODULES", 2)
    first = project.module("a", main)
    for name in "bc":
        project.module(name, main)
    again = project.module("a", main)
    assert again is not None
    assert again is not first
    assert again.name == "a"


def test_a_file_read_anew_replaces_what_was_known(tmp_path: Path, project: Project) -> None:
    write(tmp_path, main="X = 1\n")
    first = source.read(tmp_path / "main.py", "main.py")
    assert project.add(first) is project.add(first)
    write(tmp_path, main="def X(): pass\n")
    assert described(project.lookup(opened(project, tmp_path / "main.py"), "X")) == "function main.X"


def test_dependencies_go_as_far_as_names_went(tmp_path: Path, project: Project) -> None:
    write(tmp_path, a="from b import X\nfrom z import Y\n", b="from c import X\n", c="X = 1\n", z="Y = 1\n")
    main = opened(project, tmp_path / "a.py")

    def names() -> set[str]:
        return {Path(path).name for path in project.dependencies([str(tmp_path / "a.py")])}

    assert names() == {"a.py", "__init__.py"}
    project.lookup(main, "X")
    assert names() >= {"a.py", "b.py", "c.py"}
    assert "z.py" not in names()


def test_what_would_hide_a_module_is_a_dependency(tmp_path: Path, project: Project) -> None:
    write(tmp_path, **{"lib/ops": "", "scripts/deep/main": "import lib.ops\n", "scripts/lib/other": ""})
    main = opened(project, tmp_path / "scripts" / "deep" / "main.py")
    found = project.module("lib.ops", main)
    assert found is not None
    assert found.path == tmp_path / "lib" / "ops.py"
    watched = project.dependencies([str(main.path)])
    # Nearer than the one found: no package there at all, and a package without this module.
    assert {str(tmp_path / "scripts" / "deep" / name) for name in ("lib", "lib.py", "__init__.py")} <= watched
    assert str(tmp_path / "scripts" / "lib" / "ops.py") in watched
    assert str(tmp_path / "lib" / "ops.py") in watched
