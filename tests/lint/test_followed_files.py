"""Calls that are followed into other files, and the files that a file depends on."""

import pytest

from tpuport.lint import work

DEEP = "def deep(x: torch.Tensor):\n    return x.item()\n"
CALLER = "\n\nclass Model(nn.Module):\n    def forward(self, x: torch.Tensor):\n        return {}(x)\n"
LAYOUTS = {
    "a relative import": ("pkg/model.py", "from .ops import deep", "deep", {"pkg/ops.py": DEEP}),
    "a relative import of a module": ("pkg/model.py", "from . import ops", "ops.deep", {"pkg/ops.py": DEEP}),
    "a parent's module": ("pkg/sub/model.py", "from ..ops import deep", "deep", {"pkg/ops.py": DEEP}),
    "an absolute import": ("pkg/model.py", "from pkg.ops import deep as d", "d", {"pkg/ops.py": DEEP}),
    "import as": ("pkg/model.py", "import pkg.ops as o", "o.deep", {"pkg/ops.py": DEEP}),
    "import of a dotted name": ("pkg/model.py", "import pkg.ops", "pkg.ops.deep", {"pkg/ops.py": DEEP}),
    "a re-export": ("pkg/model.py", "from pkg.ops import deep",
                    "deep", {"pkg/ops/__init__.py": "from .inner import deep\n", "pkg/ops/inner.py": DEEP}),
    "a renaming re-export": ("pkg/model.py", "from .ops import fast",
                             "fast", {"pkg/ops.py": "from .inner import deep as fast\n", "pkg/inner.py": DEEP}),
    "an alias": ("pkg/model.py", "from .ops import fast", "fast", {"pkg/ops.py": DEEP + "\nfast = deep\n"}),
    "a star import": ("pkg/model.py", "from .ops import *", "deep", {"pkg/ops.py": DEEP}),
    "stars over stars": ("pkg/model.py", "from .ops import *",
                         "deep", {"pkg/ops.py": "from .inner import *\n", "pkg/inner.py": DEEP}),
    "the last star": ("pkg/model.py", "from .first import *\nfrom .ops import *",
                      "deep", {"pkg/first.py": "def deep(x):\n    return x\n", "pkg/ops.py": DEEP}),
    "single files side by side": ("scripts/model.py", "from ops import deep", "deep", {"scripts/ops.py": DEEP}),
    "a package beside a script": ("scripts/model.py", "from lib.ops import deep", "deep", {"scripts/lib/ops.py": DEEP}),
    "a package above a script": ("scripts/model.py", "from lib.ops import deep", "deep", {"lib/ops.py": DEEP}),
    "relative, without __init__.py": ("loose/model.py", "from .ops import deep", "deep", {"loose/ops.py": DEEP}),
    "under try": ("pkg/model.py", "try:\n    from .ops import deep\nexcept ImportError:\n    deep = None",
                  "deep", {"pkg/ops.py": DEEP}),
    "under if": ("pkg/model.py", "if FAST:\n    from pkg.ops import deep\nelse:\n    def deep(x):\n        pass",
                 "deep", {"pkg/ops.py": DEEP}),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_are_followed_across_files(tree, layout: str) -> None:
    main, imports, name, files = LAYOUTS[layout]
    for package in ("pkg", "pkg/sub"):
        tree.write(f"{package}/__init__.py", "", head="")
    for path, code in files.items():
        tree.write(path, code)
    tree.write(main, imports + CALLER.format(name))
    (finding,) = tree.analyse(main).findings
    assert finding.rule == "TPU201"
    assert finding.function == "deep"
    assert finding.route == ("Model.forward", "deep")
    deep = next(path for path, code in files.items() if code.startswith("def deep") and "item" in code)
    assert finding.path == str(tree.root / deep)
    assert str(tree.root / deep) in tree.analyse(main).dependencies


def test_an_import_inside_forward(tree) -> None:
    tree.write("ops.py", DEEP)
    tree.write(
        "model.py",
        """
        class Model(nn.Module):
            def forward(self, x: torch.Tensor):
                from ops import deep

                return deep(x)
        """,
    )
    assert tree.stops("model.py") == ["ops.py deep: x.item()"]


def test_a_star_import_of_torch_hides_no_builtin(tree) -> None:
    tree.write(
        "model.py",
        """
        from torch.nn import *

        class Model(Module):
            def forward(self, x: torch.Tensor):
                return int(x)
        """,
    )
    assert tree.stops("model.py") == ["model.py Model.forward: int(x)"]


def test_circular_imports(tree) -> None:
    tree.write(
        "one.py",
        """
        from two import Second

        LIMIT = 4

        class First(nn.Module):
            def __init__(self):
                super().__init__()
                self.second = Second()

            def forward(self, x: torch.Tensor):
                return self.second(x)

        def finish(x: torch.Tensor):
            return x.item()
        """,
    )
    tree.write(
        "two.py",
        """
        import one
        from one import *

        LIMIT = one.LIMIT

        class Second(nn.Module):
            def forward(self, x: torch.Tensor):
                return one.finish(x) if LIMIT else x
        """,
    )
    for name in ("one.py", "two.py"):
        assert tree.stops(name) == ["one.py finish: x.item()"]


def test_names_that_go_in_circles_end(tree) -> None:
    tree.write("one.py", "from two import thing\nfrom two import *\nX = thing\n")
    tree.write("two.py", "from one import thing\nfrom one import *\nfrom one import X\n")
    tree.write("model.py", "from one import X, thing, other\n" + CALLER.format("(X, thing, other, X.y)[0]"))
    assert tree.stops("model.py") == []


def test_a_module_that_is_its_own_base_ends(tree) -> None:
    tree.write(
        "model.py",
        "class A(B):\n    pass\n\nclass B(A):\n    def forward(self, x):\n        return x.item()\n",
    )
    tree.analyse("model.py")


@pytest.mark.parametrize("text", ["def deep(:\n", "x = '\0'\n", "# coding: nonsense\n"])
def test_an_imported_file_that_is_no_python_is_not_followed(tree, text: str) -> None:
    tree.write("ops.py", text, head="")
    tree.write("model.py", "from ops import deep\nimport ops" + CALLER.format("ops.other(x), deep"))
    assert tree.stops("model.py") == []
    assert str(tree.root / "ops.py") in tree.analyse("model.py").dependencies


def test_a_missing_file_is_a_dependency(tree) -> None:
    tree.write("model.py", "from ops import deep" + CALLER.format("deep"))
    before = tree.analyse("model.py")
    assert before.findings == []
    tree.write("ops.py", DEEP)
    assert str(tree.root / "ops.py") in before.dependencies
    assert tree.stops("model.py") == ["ops.py deep: x.item()"]


def test_an_installed_library_is_followed(tree, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tree.root / "env" / "site-packages"
    tree.write("env/site-packages/somelib/__init__.py", "from .ops import deep\n", head="")
    tree.write("env/site-packages/somelib/ops.py", DEEP)
    tree.write("work/model.py", "from somelib import deep" + CALLER.format("deep"))
    monkeypatch.syspath_prepend(site)
    assert tree.stops("work/model.py") == ["env/site-packages/somelib/ops.py deep: x.item()"]


@pytest.mark.parametrize("calls", [1, 20])
def test_an_installed_library_ends_no_analysis(tree, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """What takes too much work returns what its annotation says, and the file's own lines are read to the end."""
    body = "".join(f"    x{number} = x.relu()\n" for number in range(500))
    tree.write("env/site-packages/somelib/__init__.py", f"def costly(x, n) -> torch.Tensor:\n{body}")
    lines = "".join(f"        x = costly(x, '{number}')\n" for number in range(calls))
    caller = CALLER.replace("        return", f"{lines}        return").format(
        "torch.relu(x).tolist() or len"
    )
    tree.write("work/model.py", "from somelib import costly" + caller)
    monkeypatch.syspath_prepend(tree.root / "env" / "site-packages")
    monkeypatch.setattr(work.meter, "limit", 1_000)
    assert tree.stops("work/model.py") == ["work/model.py Model.forward: torch.relu(x).tolist() or len(x)"]
    assert work.meter.units < 1_000
