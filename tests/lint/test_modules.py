"""What a file's names mean, by its text alone."""

import ast
import textwrap
from pathlib import Path

import pytest

from tpuport.lint.modules import (
    ClassInfo,
    FunctionInfo,
    ModuleInfo,
    canonical,
    package_root,
    search_directories,
)
from tpuport.lint.regular_files import is_file
from tpuport.lint.scope_statements import definitions


def module(code: str, name: str = "pkg.sub.mod", is_package: bool = False) -> ModuleInfo:
    code = textwrap.dedent(code)
    return ModuleInfo(Path("/code/mod.py"), name, ast.parse(code), is_package, tuple(code.split("\n")))


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


# --- names ---


@pytest.mark.parametrize(
    ("statement", "name", "meaning"),
    [
        ("import torch", "torch", ("import", "torch")),
        ("import torch.nn", "torch", ("import", "torch")),
        ("import torch.nn as tnn", "tnn", ("import", "torch.nn")),
        ("from torch import nn", "nn", ("from", "torch", "nn")),
        ("from torch import nn as tnn", "tnn", ("from", "torch", "nn")),
        ("from . import ops", "ops", ("from", "pkg.sub", "ops")),
        ("from .ops import f", "f", ("from", "pkg.sub.ops", "f")),
        ("from ..ops import f", "f", ("from", "pkg.ops", "f")),
        ("from ...ops import f", "f", ("from", "ops", "f")),
        ("from ....ops import f", "f", ("from", "ops", "f")),
        ("from .....ops import f", "f", ("from", "ops", "f")),
        ("if a:\n    import x", "x", ("import", "x")),
        ("for i in a:\n    import x", "x", ("import", "x")),
        ("while a:\n    import x", "x", ("import", "x")),
        ("with a:\n    import x", "x", ("import", "x")),
        ("try:\n    import x\nfinally:\n    pass", "x", ("import", "x")),
        ("try:\n    pass\nexcept* ValueError:\n    import x", "x", ("import", "x")),
    ],
)
def test_imports(statement: str, name: str, meaning: tuple[str, ...]) -> None:
    assert module(statement).names == {name: meaning}


@pytest.mark.parametrize(
    ("is_package", "name", "origin"),
    [(False, "pkg.mod", "pkg"), (True, "pkg.mod", "pkg.mod"), (False, "script", "")],
)
def test_relative_imports_start_from_the_package(is_package: bool, name: str, origin: str) -> None:
    assert module("from . import x", name, is_package).names["x"] == ("from", origin, "x")


def test_a_name_means_what_it_was_bound_to_last() -> None:
    names = module(
        """
        def f(): pass
        def f(a): pass
        class C: pass
        C = 3
        X: int
        Y: int = 2
        Y = Z = 4
        a, b = 1, 2
        c.d = 5
        """
    ).names
    assert set(names) == {"f", "C", "Y", "Z"}
    assert isinstance(names["f"], FunctionInfo)
    assert len(names["f"].node.args.args) == 1
    assert isinstance(names["C"], ast.Constant)
    assert names["Y"] is names["Z"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        # Without the library, its stand-in is used.
        ("try:\n    from flash import f\nexcept ImportError:\n    f = None", ast.Constant),
        ("try:\n    from flash import f\nexcept ImportError:\n    def f(): pass", FunctionInfo),
        # A file of the same package is there.
        ("try:\n    from .ops import f\nexcept ImportError:\n    f = None", tuple),
        ("try:\n    from pkg.ops import f\nexcept ImportError:\n    f = None", tuple),
        ("try:\n    import torch as f\nexcept ImportError:\n    f = None", tuple),
        ("try:\n    import torch.nn.functional as f\nexcept ImportError:\n    f = None", tuple),
        ("try:\n    from torch import nn as f\nexcept ImportError:\n    f = None", tuple),
        ("try:\n    from torch import newest as f\nexcept ImportError:\n    f = None", ast.Constant),
        ("if fast:\n    from .ops import f\nelse:\n    def f(): pass", tuple),
        ("if fast:\n    def f(): pass\nelse:\n    f = None", FunctionInfo),
        ("from .ops import f\ndef f(): pass", FunctionInfo),
    ],
)
def test_of_two_branches_the_better_equipped_counts(code: str, kind: type) -> None:
    assert isinstance(module(code).names["f"], kind)


def test_star_imports_are_listed_once_and_in_order() -> None:
    code = (
        "from .b import *\nfrom torch.nn import *\ntry:\n    from a import *\nexcept ImportError:\n    pass\n"
    )
    found = module(code)
    assert found.stars == ["pkg.sub.b", "torch.nn", "a"]
    assert found.names == {}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("F.relu", "torch.nn.functional.relu"),
        ("torch.cuda.amp.autocast", "torch.cuda.amp.autocast"),
        ("linear.Linear", "torch.nn.Linear"),
        ("Layer", "torch.nn.Linear"),
        ("local", "local"),
        ("self.x.y", "self.x.y"),
        ("f().x", ""),
        ("1", ""),
    ],
)
def test_dotted_names_go_through_imports(text: str, name: str) -> None:
    found = module(
        """
        import torch
        import torch.nn.functional as F
        from torch.nn.modules import linear
        from torch.nn.modules.linear import Linear as Layer
        """
    )
    assert found.dotted(expression(text)) == name


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("torch.nn.modules.linear.Linear", "torch.nn.Linear"),
        ("torch.nn.parameter.Parameter", "torch.nn.Parameter"),
        ("torch.functional.einsum", "torch.einsum"),
        ("torch.autograd.grad_mode.no_grad", "torch.no_grad"),
        ("torch._tensor.Tensor", "torch.Tensor"),
        ("torch.nn.functional.relu", "torch.nn.functional.relu"),
        ("torchvision.nn.modules.x", "torchvision.nn.modules.x"),
        ("torch", "torch"),
    ],
)
def test_library_names_have_one_spelling(name: str, short: str) -> None:
    assert canonical(name) == short
    assert canonical(canonical(name)) == short


# --- functions and classes ---


def test_decorators_are_resolved_even_before_the_import() -> None:
    found = module(
        """
        @no_grad()
        @functools.lru_cache(maxsize=None)
        def f(): pass

        class C:
            @property
            def size(self): return 1

            @size.setter
            def size(self, value): self._size = value

            @staticmethod
            def make(): pass

        import functools
        from torch import no_grad
        """
    )
    (function,) = found.functions
    assert function.decorators == ("torch.no_grad", "functools.lru_cache")
    assert function.is_a("lru_cache", "cache")
    assert not function.is_a("torch")
    (klass,) = found.classes
    assert klass.methods["size"].is_a("property")  # not the setter
    assert klass.methods["make"].qualname == "C.make"
    assert klass.methods["make"].owner is klass


def test_a_classs_assignments_and_annotations() -> None:
    (klass,) = module(
        """
        class C:
            x: int
            y: int = 2
            z = w = 3
            if flag:
                v = 4
            def m(self): self.u = 5
        """
    ).classes
    assert {name: getattr(node, "value", None) for name, node in klass.assigned.items()} == {
        "x": None, "y": 2, "z": 3, "w": 3, "v": 4,
    }  # fmt: skip
    assert set(klass.annotated) == {"x", "y"}
    assert set(klass.methods) == {"m"}


def test_inner_classes_come_first_and_bind_no_name() -> None:
    found = module(
        """
        class Outer:
            class Part:
                class Deep: pass
            def m(self):
                class Local: pass

        def make():
            if True:
                class Made: pass
        """
    )
    assert [klass.qualname for klass in found.classes] == [
        "Outer.Part", "Outer.Part.Deep", "Outer.m.Local", "make.Made", "Outer",
    ]  # fmt: skip
    assert set(found.names) == {"Outer", "make"}
    part = found.classes[0]
    assert found.klass(part.node, "Outer") is part
    assert isinstance(part, ClassInfo)


def test_definitions_say_what_is_around_them() -> None:
    tree = ast.parse("class A:\n    def f(self):\n        def g(): pass\ndef h(): lambda: 0\n")
    found = [(node.name, prefix, around and around.name) for node, prefix, around in definitions(tree)]
    assert found == [("A", "", None), ("f", "A", "A"), ("g", "A.f", "f"), ("h", "", None)]


def test_a_lambda_has_a_name_of_its_own() -> None:
    node = expression("lambda x: x")
    assert isinstance(node, ast.Lambda)
    info = FunctionInfo(node, module(""), None, "f")
    assert (info.qualname, info.decorators) == ("f.<lambda>", ())


# --- files ---


def test_package_roots(tmp_path: Path) -> None:
    inner = tmp_path / "lib" / "pkg" / "sub"
    inner.mkdir(parents=True)
    for directory in (inner.parent, inner):
        (directory / "__init__.py").touch()
    assert package_root(inner / "mod.py") == (tmp_path / "lib", "pkg.sub.mod")
    assert package_root(inner / "__init__.py") == (tmp_path / "lib", "pkg.sub")
    assert package_root(tmp_path / "lib" / "script.py") == (tmp_path / "lib", "script")
    assert package_root(tmp_path / "empty" / "__init__.py") == (tmp_path / "empty", "__init__")


def test_what_cannot_be_a_file_is_none(tmp_path: Path) -> None:
    assert not is_file(tmp_path / ("x" * 5000))
    assert not is_file(tmp_path)
    assert not is_file(tmp_path / "missing" / "x.py")


def test_search_directories_are_those_of_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.setattr("sys.path", ["", str(tmp_path), str(site), str(site), str(tmp_path / "gone")])
    assert search_directories() == [site.resolve()]
