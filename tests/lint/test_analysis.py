"""What is traced and what is not, over files; and that findings depend on the files alone."""

import dataclasses
import itertools
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpuport.lint import source
from tpuport.lint.abstract_values import Tensor
from tpuport.lint.analysis import Analyser, Options, Outcome
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.interpreter.frame import Frame
from tpuport.lint.rules import Hit, all_rules

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
STOPS = ("TPU1", "TPU2")


class Tree:
    """A directory of code; files are given and named by relative path."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, code: str, head: str = HEAD) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head + textwrap.dedent(code))
        return path

    def analyse(self, name: str, analyser: Analyser | None = None, **options: Any) -> Outcome:
        path = self.root / name
        analyser = analyser or Analyser(Options(rules=all_rules(), **options))
        return analyser.analyse(source.read(path, name))

    def stops(self, name: str, analyser: Analyser | None = None, **options: Any) -> list[str]:
        """Errors that stop a trace: file, function and text from the finding's column on, as "a.py f: x.item()"."""
        found = []
        for one in self.analyse(name, analyser, **options).findings:
            if one.severity == Severity.ERROR and one.rule.startswith(STOPS):
                path = Path(one.path)
                text = path.read_text().split("\n")[one.line - 1]
                found.append(
                    f"{path.relative_to(self.root)} {one.function}: {text[one.column - 1 :].strip()}"
                )
        return found


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


# --- what is traced ---


def test_calls_are_followed_from_forward_and_nothing_else_is_traced(tree: Tree) -> None:
    tree.write(
        "model.py",
        """
        def helper(x: torch.Tensor):
            return deeper(x)

        def deeper(x: torch.Tensor):
            return x.item()

        def unused(x: torch.Tensor):
            return x.tolist()

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.rate = torch.linspace(0, 1, 4, device="cpu").max().item()

            def forward(self, x: torch.Tensor):
                return self.step(x)

            def step(self, x):
                return helper(x) + x.numpy()

            def export(self, x: torch.Tensor):
                return x.tolist()
        """,
    )
    assert tree.stops("model.py") == ["model.py deeper: x.item()", "model.py Model.step: x.numpy()"]
    outcome = tree.analyse("model.py")
    path = tree.root / "model.py"
    assert outcome.traced == {
        f"{path}:{name}" for name in ("Model.forward", "Model.step", "helper", "deeper")
    }
    assert outcome.entry_points == 1
    assert [one.route for one in outcome.findings] == [
        ("Model.forward", "Model.step", "helper", "deeper"), ("Model.forward", "Model.step"),
    ]  # fmt: skip


HOST = {
    "a pipeline": """
        class Pipeline:
            def __init__(self, model):
                self.model = model

            def __call__(self, x: torch.Tensor, mask: torch.Tensor):
                if mask.sum() > 0:
                    x = x[mask]
                return [self.model(x).item() for _ in range(3)]
        """,
    "a scheduler": """
        class Scheduler:
            def step(self, sample: torch.Tensor, timestep: torch.Tensor):
                index = (self.timesteps == timestep).nonzero()[0].item()
                return sample * self.sigmas[index]
        """,
    "a training script": """
        def train(model: nn.Module, batches):
            for x in batches:
                loss = model(x).mean()
                if torch.isnan(loss):
                    raise ValueError(f"{loss.item():.3f}")
                print(loss.item())

        if __name__ == "__main__":
            train(nn.Linear(2, 2), [torch.ones(2)])
        """,
    "the constructor": """
        class Model(nn.Module):
            def __init__(self, weights: torch.Tensor):
                super().__init__()
                self.rates = [r.item() for r in torch.linspace(0, 0.1, 3)]
                if weights.max() > 1:
                    weights = weights[weights > 1]
                self.weights = nn.Parameter(weights)

            def forward(self, x: torch.Tensor):
                return x * self.rates[0] + self.weights
        """,
    "a dataset": """
        class Images(torch.utils.data.Dataset):
            def __getitem__(self, index):
                label = self.labels[index].item()
                return self.images[self.labels == label].numpy()
        """,
    "a loss that no module calls": """
        def metric(x: torch.Tensor, y: torch.Tensor):
            return (x == y).sum().item() / len(x)
        """,
    "loading weights": """
        class Model(nn.Module):
            def forward(self, x: torch.Tensor):
                return x

            def load(self, state: dict[str, torch.Tensor]):
                return {name: value.numpy() for name, value in state.items() if value.any()}
        """,
}


@pytest.mark.parametrize("kind", HOST)
def test_host_code_is_no_error(tree: Tree, kind: str) -> None:
    tree.write("host.py", HOST[kind])
    assert tree.stops("host.py") == []


@pytest.mark.parametrize("kind", ["a pipeline", "a scheduler", "a dataset"])
def test_the_same_code_in_a_module_is_an_error(tree: Tree, kind: str) -> None:
    code = HOST[kind]
    for name in ("__call__", "step", "__getitem__"):
        code = code.replace(f"def {name}(", "def forward(")
    for name in ("Pipeline", "Scheduler", "Images(torch.utils.data.Dataset)"):
        code = code.replace(f"class {name}", "class Model(nn.Module)")
    tree.write("host.py", code.replace("(self, index)", "(self, index: torch.Tensor)"))
    assert tree.stops("host.py")


def test_gpu_code_at_import_is_an_error_though_nothing_is_traced(tree: Tree) -> None:
    tree.write("script.py", "torch.cuda.set_device(0)\n\n\ndef main():\n    torch.cuda.set_device(1)\n")
    found = {one.line: (one.rule, one.severity) for one in tree.analyse("script.py").findings}
    assert found == {4: ("TPU303", Severity.ERROR), 8: ("TPU303", Severity.WARNING)}
    assert tree.analyse("script.py").entry_points == 0


COMPILED = {
    "@torch.compile": "@torch.compile\ndef step(x):\n    return x.item()\n",
    "@torch.compile(...)": "@torch.compile(fullgraph=True)\ndef step(x):\n    return x.item()\n",
    "@jax.jit": "import jax\n\n@jax.jit\ndef step(x):\n    return x.item()\n",
    "@partial(jax.jit, ...)": (
        "import functools, jax\n\n@functools.partial(jax.jit, static_argnums=1)\n"
        "def step(x, n):\n    return x.item()\n"
    ),
    "torch.compile(f)": "def step(x):\n    return x.item()\n\nfast = torch.compile(step, mode='default')\n",
    "torch.compile(model=f)": "def step(x):\n    return x.item()\n\nfast = torch.compile(model=step)\n",
    "tpuport.compile(f)": "import tpuport\n\ndef step(x):\n    return x.item()\n\nfast = tpuport.compile(step)\n",
    "from tpuport import compile": (
        "from tpuport import compile as build\n\ndef step(x):\n    return x.item()\n\nfast = build(step)\n"
    ),
    "interop.jax_jit": (
        "from torchax import interop\n\ndef step(x):\n    return x.item()\n\nfast = interop.jax_jit(step)\n"
    ),
    "inside a function": (
        "import jax\n\ndef main():\n    def step(x):\n        return x.item()\n    return jax.jit(step)\n"
    ),
    "decorated inside a function": (
        "import jax\n\ndef main():\n    @jax.jit\n    def step(x):\n        return x.item()\n    return step\n"
    ),
    "a lambda": "import jax\n\nfast = jax.jit(lambda x: x.item())\n",
    "a partial application": (
        "import functools, jax\n\ndef step(n, x):\n    return x.item()\n\nfast = jax.jit(functools.partial(step, 1))\n"
    ),
    "a method": (
        "class Sampler:\n    def __init__(self):\n        self.fast = torch.compile(self.step)\n\n"
        "    def step(self, x):\n        return x.item()\n"
    ),
    "a decorated method": "class Sampler:\n    @torch.compile\n    def step(self, x):\n        return x.item()\n",
    "a method of a class": (
        "class Sampler:\n    def step(self, x):\n        return x.item()\n\nfast = torch.compile(Sampler.step)\n"
    ),
}


@pytest.mark.parametrize("how", COMPILED)
def test_what_the_code_compiles_is_traced(tree: Tree, how: str) -> None:
    tree.write("sampling.py", COMPILED[how])
    (found,) = tree.stops("sampling.py")
    assert "x.item()" in found
    assert tree.analyse("sampling.py").entry_points == 1


def test_what_only_sounds_like_compiling_traces_nothing(tree: Tree) -> None:
    tree.write(
        "words.py",
        """
        import re
        from elsewhere import compile

        def step(x: torch.Tensor):
            return x.item()

        pattern = re.compile("step")
        other = compile(step)
        """,
    )
    assert tree.analyse("words.py").entry_points == 0


def test_a_function_compiled_in_another_file_is_traced(tree: Tree) -> None:
    tree.write("steps.py", "def step(x: torch.Tensor):\n    return x.item()\n")
    tree.write("main.py", "from steps import step\n\nfast = torch.compile(step)\n")
    assert tree.stops("main.py") == ["steps.py step: x.item()"]
    assert tree.stops("steps.py") == []


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (("Sampler.step",), ["sampling.py Sampler.step: x.item()"]),
        (("sampling:Sampler.step",), ["sampling.py Sampler.step: x.item()"]),
        (("*:Sampler.*",), ["sampling.py Sampler.step: x.item()", "sampling.py Sampler.run: x.tolist()"]),
        (("free",), ["sampling.py free: x.numpy()"]),
        (("other:free", "Sampler"), []),
        ((), []),
    ],
)
def test_configured_entry_points(tree: Tree, patterns: tuple[str, ...], expected: list[str]) -> None:
    tree.write(
        "sampling.py",
        """
        class Sampler:
            def step(self, x: torch.Tensor):
                return x.item()

            def run(self, x: torch.Tensor):
                return x.tolist()

        def free(x: torch.Tensor):
            return x.numpy()
        """,
    )
    assert tree.stops("sampling.py", entry_points=patterns) == expected


def test_attention_processors_are_traced(tree: Tree) -> None:
    tree.write(
        "processors.py",
        """
        class FastAttnProcessor2_0:
            def __call__(self, attn, hidden_states: torch.Tensor):
                return hidden_states[hidden_states > 0]

        class ImageProcessor:
            def __call__(self, images: torch.Tensor):
                return images.numpy()
        """,
    )
    assert tree.stops("processors.py") == [
        "processors.py FastAttnProcessor2_0.__call__: hidden_states[hidden_states > 0]"
    ]


# --- classes ---


def test_forward_inherited_from_another_file(tree: Tree) -> None:
    tree.write(
        "base.py",
        """
        class Base(nn.Module):
            def forward(self, x: torch.Tensor):
                return self.mix(x)

            def mix(self, x):
                raise NotImplementedError
        """,
    )
    tree.write(
        "model.py",
        """
        from base import Base

        class Model(Base):
            def mix(self, x):
                return x.item()
        """,
    )
    assert tree.stops("model.py") == ["model.py Model.mix: x.item()"]
    assert tree.stops("base.py") == []


def test_each_class_is_entered_with_its_own_methods(tree: Tree) -> None:
    tree.write(
        "model.py",
        """
        class Block(nn.Module):
            def forward(self, x: torch.Tensor):
                return self.mix(x)

            def mix(self, x):
                return x.item()

        class Fancy(Block):
            def mix(self, x):
                return x * 2
        """,
    )
    assert tree.stops("model.py") == ["model.py Block.mix: x.item()"]


def test_super_goes_to_the_base_and_overridden_code_is_not_traced(tree: Tree) -> None:
    tree.write(
        "base.py",
        "class Base(nn.Module):\n    def forward(self, x: torch.Tensor):\n        return x.item()\n",
    )
    tree.write(
        "model.py",
        """
        import base

        class Silent(base.Base):
            def forward(self, x: torch.Tensor):
                return x

        class Loud(base.Base):
            def forward(self, x: torch.Tensor):
                return super().forward(x)
        """,
    )
    outcome = tree.analyse("model.py")
    assert tree.stops("model.py") == ["base.py Base.forward: x.item()"]
    assert outcome.findings[0].route == ("Loud.forward", "Base.forward")


@pytest.mark.parametrize("base", ["Missing", "missing.Missing", "Missing[int]"])
def test_a_class_with_an_unknown_base_and_a_forward_is_a_module(tree: Tree, base: str) -> None:
    code = f"""
        import missing
        from missing import Missing

        class Model({base}):
            def forward(self, x: torch.Tensor):
                return x.item()

        class Other({base}):
            def step(self, x: torch.Tensor):
                return x.item()
        """
    tree.write("model.py", code)
    assert tree.stops("model.py") == ["model.py Model.forward: x.item()"]


def test_plain_classes_autograd_functions_and_enumerations_are_no_modules(tree: Tree) -> None:
    tree.write(
        "model.py",
        """
        import enum

        class Plain:
            def forward(self, x: torch.Tensor):
                return x.item()

        class Exp(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x: torch.Tensor):
                return x.item()

        class Kind(enum.Enum):
            def forward(self, x: torch.Tensor):
                return x.item()
        """,
    )
    assert tree.analyse("model.py").entry_points == 0


def test_classes_inside_functions_and_classes(tree: Tree) -> None:
    tree.write(
        "model.py",
        """
        def make(dim):
            class Inner(nn.Module):
                def forward(self, x: torch.Tensor):
                    return x.item()

            return Inner()

        class Outer:
            class Part(nn.Module):
                def forward(self, x: torch.Tensor):
                    return x.tolist()
        """,
    )
    assert tree.stops("model.py") == [
        "model.py make.Inner.forward: x.item()", "model.py Outer.Part.forward: x.tolist()",
    ]  # fmt: skip


def test_modules_in_branches(tree: Tree) -> None:
    tree.write(
        "model.py",
        """
        import sys

        try:
            from somewhere import Norm
        except ImportError:
            class Norm(nn.Module):
                def forward(self, x: torch.Tensor):
                    return x.item()

        if sys.platform == "linux":
            class Model(nn.Module):
                def forward(self, x: torch.Tensor):
                    return x.tolist()
        else:
            class Model(nn.Module):
                def forward(self, x: torch.Tensor):
                    return x.numpy()
        """,
    )
    assert tree.stops("model.py") == [
        "model.py Norm.forward: x.item()", "model.py Model.forward: x.tolist()", "model.py Model.forward: x.numpy()",
    ]  # fmt: skip


def test_of_two_functions_of_one_name_the_last_is_called(tree: Tree) -> None:
    tree.write(
        "model.py",
        """
        def helper(x):
            return x.item()

        def helper(x):
            return x.tolist()

        def cuda_helper(x):
            return x

        class Model(nn.Module):
            def forward(self, x: torch.Tensor):
                return helper(x), cuda_helper(x)

        def cuda_helper(x):
            torch.cuda.set_device(0)
            return x.cuda()
        """,
    )
    assert tree.stops("model.py") == ["model.py helper: x.tolist()"]


def test_untraced_code_under_the_name_of_traced_code_is_scanned_as_host_code(tree: Tree) -> None:
    tree.write(
        "model.py",
        """
        def helper(x):
            torch.cuda.set_device(0)

        def helper(x):
            return x

        class Model(nn.Module):
            def forward(self, x: torch.Tensor):
                return helper(x)
        """,
    )
    (found,) = tree.analyse("model.py").findings
    assert (found.rule, found.line, found.severity) == ("TPU303", 6, Severity.WARNING)


# --- files ---

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
def test_calls_are_followed_across_files(tree: Tree, layout: str) -> None:
    main, imports, name, files = LAYOUTS[layout]
    for package in ("pkg", "pkg/sub"):
        tree.write(f"{package}/__init__.py", "", head="")
    for path, code in files.items():
        tree.write(path, code)
    tree.write(main, imports + CALLER.format(name))
    (found,) = tree.analyse(main).findings
    assert found.rule == "TPU201"
    assert found.function == "deep"
    assert found.route == ("Model.forward", "deep")
    deep = next(path for path, code in files.items() if code.startswith("def deep") and "item" in code)
    assert found.path == str(tree.root / deep)
    assert str(tree.root / deep) in tree.analyse(main).dependencies


def test_an_import_inside_forward(tree: Tree) -> None:
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


def test_a_star_import_of_torch_hides_no_builtin(tree: Tree) -> None:
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


def test_circular_imports(tree: Tree) -> None:
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


def test_names_that_go_in_circles_end(tree: Tree) -> None:
    tree.write("one.py", "from two import thing\nfrom two import *\nX = thing\n")
    tree.write("two.py", "from one import thing\nfrom one import *\nfrom one import X\n")
    tree.write("model.py", "from one import X, thing, other\n" + CALLER.format("(X, thing, other, X.y)[0]"))
    assert tree.stops("model.py") == []


def test_a_module_that_is_its_own_base_ends(tree: Tree) -> None:
    tree.write(
        "model.py",
        "class A(B):\n    pass\n\nclass B(A):\n    def forward(self, x):\n        return x.item()\n",
    )
    tree.analyse("model.py")


@pytest.mark.parametrize("text", ["def deep(:\n", "x = '\0'\n", "# coding: nonsense\n"])
def test_an_imported_file_that_is_no_python_is_not_followed(tree: Tree, text: str) -> None:
    tree.write("ops.py", text, head="")
    tree.write("model.py", "from ops import deep\nimport ops" + CALLER.format("ops.other(x), deep"))
    assert tree.stops("model.py") == []
    assert str(tree.root / "ops.py") in tree.analyse("model.py").dependencies


def test_a_missing_file_is_a_dependency(tree: Tree) -> None:
    tree.write("model.py", "from ops import deep" + CALLER.format("deep"))
    before = tree.analyse("model.py")
    assert before.findings == []
    tree.write("ops.py", DEEP)
    assert str(tree.root / "ops.py") in before.dependencies
    assert tree.stops("model.py") == ["ops.py deep: x.item()"]


def test_an_installed_library_is_followed(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tree.root / "env" / "site-packages"
    tree.write("env/site-packages/somelib/__init__.py", "from .ops import deep\n", head="")
    tree.write("env/site-packages/somelib/ops.py", DEEP)
    tree.write("work/model.py", "from somelib import deep" + CALLER.format("deep"))
    monkeypatch.syspath_prepend(site)
    assert tree.stops("work/model.py") == ["env/site-packages/somelib/ops.py deep: x.item()"]


# --- bounds ---


def test_recursion_ends(tree: Tree) -> None:
    tree.write(
        "model.py",
        """
        def fold(x, n):
            return x.item() if n == 0 else fold(x * 2, n - 1)

        def ping(x, *rest):
            return pong(x, x, *rest)

        def pong(x, *rest):
            return ping(x, x, *rest)

        class Model(nn.Module):
            def forward(self, x: torch.Tensor):
                return fold(x, 3), ping(x), self.forward([x])
        """,
    )
    assert tree.stops("model.py") == ["model.py fold: x.item() if n == 0 else fold(x * 2, n - 1)"]


def test_a_chain_of_many_calls_ends(tree: Tree) -> None:
    links = "".join(f"def f{n}(x):\n    return f{n + 1}(x)\n\n" for n in range(300))
    tree.write("model.py", links + "def f300(x):\n    return x.item()\n" + CALLER.format("f0"))
    tree.analyse("model.py")


def _nested(headers: list[str], inner: str) -> str:
    lines = [f"{'    ' * depth}{header}:" for depth, header in enumerate(headers, 2)]
    return "\n".join([*lines, f"{'    ' * (len(headers) + 2)}{inner}\n"])


# How big, and the body of a function that is so big.
BIG: dict[str, tuple[int, Callable[[int], str]]] = {
    "branches": (200, lambda n: "        if self.a:\n            x = x + 1\n" * n),
    "branches in one if": (200, lambda n: "        if self.a == 0:\n            pass\n"
        + "".join(f"        elif self.a == {i}:\n            x = x + {i}\n" for i in range(n))),
    "nested blocks": (90, lambda n: _nested(["with self.c", "if self.a"] * (n // 2), "x = x + 1")),
    "nested brackets": (180, lambda n: f"        x = {'(' * n}x{' + 1)' * n}\n"),
    "nested loops": (18, lambda n: _nested([f"for i{i} in range(self.a)" for i in range(n)], "x = [x, x]")),
    "a name bound anew": (200, lambda n: "        y = x\n        x = (x, y)[0]\n" * n),
}  # fmt: skip


@pytest.mark.parametrize("kind", BIG)
def test_a_function_twice_as_big_takes_little_more_than_twice_the_work(
    tree: Tree, kind: str, lines_run: Callable[[Callable[[], object]], int]
) -> None:
    size, body = BIG[kind]

    def lines(size: int) -> int:
        code = "class Model(nn.Module):\n    def forward(self, x: torch.Tensor):\n"
        tree.write("model.py", f"{code}{body(size)}        return x.item()\n")
        return lines_run(lambda: tree.analyse("model.py"))

    # The body of a loop is interpreted again where the loop around it has others to say, so depth counts twice.
    assert lines(size) < (5 if kind == "nested loops" else 2.2) * lines(size // 2)


@pytest.mark.parametrize("kind", ["branches", "branches in one if", "nested brackets"])
def test_what_follows_much_else_is_found(tree: Tree, kind: str) -> None:
    size, body = BIG[kind]
    code = "class Model(nn.Module):\n    def forward(self, x: torch.Tensor):\n"
    tree.write("model.py", f"{code}{body(size)}        return x.item()\n")
    found = tree.analyse("model.py").findings
    assert [one.rule for one in found if one.severity == Severity.ERROR] == ["TPU201"]


# --- the same findings however it is asked ---


def _library(tree: Tree) -> list[str]:
    """A package whose files share helpers that are called in many ways."""
    tree.write("pkg/__init__.py", "", head="")
    tree.write(
        "pkg/shared.py",
        """
        from .flags import LOUD

        def mix(x, y=None, n=1):
            if y is not None:
                return x[y]
            return x.item() if LOUD else x

        class Base(nn.Module):
            def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None):
                return self.mix(x, mask)

            def mix(self, x, mask):
                return mix(x, mask)
        """,
    )
    tree.write("pkg/flags.py", "LOUD = True\n", head="")
    names = ["pkg/shared.py", "pkg/flags.py"]
    for number in range(6):
        name = f"pkg/model_{number}.py"
        ways = ", ".join(
            f"mix({value}, {other})"
            for value in ("x", "[x]", "3", "(x, x)", "None", "{}")[: number + 1]
            for other in ("None", "x > 0", "x.shape", "'a'")
        )
        tree.write(
            name,
            f"""
            from .shared import Base, mix

            class Part{number}(Base):
                def mix(self, x, mask):
                    return super().mix(x, None), {ways}

            class Model{number}(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.part = Part{number}()

                def forward(self, x: torch.Tensor, ids):
                    return self.part(x, ids > 3), mix(ids)
            """,
        )
        names.append(name)
    return names


def test_findings_do_not_depend_on_what_was_analysed_before(tree: Tree) -> None:
    names = _library(tree)
    alone = {name: tree.analyse(name) for name in names}
    assert len({finding for outcome in alone.values() for finding in outcome.findings}) > 6
    for order in (names, names[::-1], names[3:] + names[:3], [*names, *names]):
        analyser = Analyser(Options(rules=all_rules()))
        for name in order:
            again = tree.analyse(name, analyser)
            assert again.findings == alone[name].findings, name
            assert (again.traced, again.entry_points) == (alone[name].traced, alone[name].entry_points)


def test_findings_do_not_depend_on_how_many_modules_are_kept(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = _library(tree)
    alone = {name: tree.analyse(name).findings for name in names}
    monkeypatch.setattr("tpuport.lint.project._MAX_MODULES", 2)
    analyser = Analyser(Options(rules=all_rules()))
    assert {name: tree.analyse(name, analyser).findings for name in names} == alone


def test_a_call_made_in_another_file_is_no_call_of_this_one(tree: Tree) -> None:
    """One file calls `inner` in so many ways that it is no longer told apart; the other knows its one way."""
    tree.write("shared.py", "def inner(x, y):\n    return x[y]\n\ndef outer(x, y):\n    return inner(x, y)\n")
    ways = "\n".join(
        f"        inner({value}, x)"
        for value in ("0", "'a'", "None", "[]", "()", "{}", "[x]", "(x,)", "x.shape")
    )
    head = "from shared import inner, outer\n\nclass Model(nn.Module):\n    def forward(self, x: torch.Tensor):\n"
    tree.write("many.py", f"{head}{ways}\n        return outer(x, x > 0)\n")
    tree.write("one.py", f"{head}        return outer(x, x > 0)\n")
    expected = ["shared.py inner: x[y]"]
    assert tree.stops("one.py") == expected
    analyser = Analyser(Options(rules=all_rules()))
    tree.analyse("many.py", analyser)
    assert tree.stops("one.py", analyser) == expected


def test_of_two_ways_to_one_place_the_worse_is_told(tree: Tree) -> None:
    def check(event: Call, context: object) -> Hit | None:
        tensor = any(isinstance(value, Tensor) for value in event.args)
        return (
            Hit(severity=Severity.ERROR if tensor else Severity.WARNING)
            if event.name == "torch.abs"
            else None
        )

    rule = dataclasses.replace(all_rules()[0], events=(Call,), check=check)
    calls = ["helper(3)", "helper(x)", "helper([])"]
    for order in itertools.permutations(calls):
        body = "\n".join(f"        {call}" for call in order)
        tree.write(
            "model.py",
            "def helper(y):\n    return torch.abs(y)\n\n"
            f"class Model(nn.Module):\n    def forward(self, x: torch.Tensor):\n{body}\n",
        )
        (found,) = tree.analyse("model.py", Analyser(Options(rules=(rule,)))).findings
        assert found.severity == Severity.ERROR, order


@pytest.mark.parametrize("after", [1, 3, 8, 14, 20])
def test_a_file_that_could_not_be_analysed_spoils_no_other(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    names = _library(tree)
    expected = tree.analyse(names[-1])
    analyser = Analyser(Options(rules=all_rules()))
    real, calls = Frame.execute, 0

    def failing(*args: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls > after:
            raise RecursionError
        return real(*args)

    monkeypatch.setattr(Frame, "execute", failing)
    with pytest.raises(RecursionError):
        tree.analyse(names[-1], analyser)
    monkeypatch.undo()
    assert tree.analyse(names[-1], analyser) == expected


def test_every_file_that_matters_is_a_dependency_whatever_was_analysed_before(tree: Tree) -> None:
    names = _library(tree)
    analyser = Analyser(Options(rules=all_rules()))
    outcomes = {name: tree.analyse(name, analyser) for name in names}
    for name in names[2:]:
        assert {str(tree.root / other) for other in ("pkg/shared.py", "pkg/flags.py")} <= set(
            outcomes[name].dependencies
        )
        assert str(tree.root / name) not in outcomes[name].dependencies
    # Changing, removing or adding any file changes nothing for those that do not name it.
    for changed in [*names, "shared.py", "pkg/shared/__init__.py", "__init__.py"]:
        path = tree.root / changed
        before = path.read_text() if path.exists() else None
        path.parent.mkdir(exist_ok=True)
        path.write_text("LOUD = None\n")
        for name in names:
            if name != changed and str(path) not in outcomes[name].dependencies:
                assert tree.analyse(name).findings == outcomes[name].findings, (changed, name)
        if before is None:
            path.unlink()
        else:
            path.write_text(before)
        if path.parent != tree.root and not any(path.parent.iterdir()):
            shutil.rmtree(path.parent)


# --- places ---


def test_columns_count_characters(tree: Tree) -> None:
    body = '"ключ", x.item()  # 名前'
    tree.write(
        "model.py", "class Model(nn.Module):\n    def forward(self, x: torch.Tensor):\n        return " + body
    )
    (found,) = tree.analyse("model.py").findings
    assert (found.column, found.end_column) == (24, 32)


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
def test_other_line_ends(tree: Tree, ending: str) -> None:
    path = tree.write("model.py", CALLER.format("float"))
    (expected,) = tree.analyse("model.py").findings
    path.write_bytes(path.read_text().replace("\n", ending).encode())
    (found,) = tree.analyse("model.py").findings
    assert found == expected


@pytest.mark.parametrize("character", ["\f", "\v", "\x1c", "\x85", "\u2028"])
def test_characters_that_end_no_line(tree: Tree, character: str) -> None:
    body = f'x = x + len("{character}")\n        return x.item()'
    tree.write(
        "model.py", f"class Model(nn.Module):\n    def forward(self, x: torch.Tensor):\n        {body}\n"
    )
    (found,) = tree.analyse("model.py").findings
    assert (found.line, found.column) == (7, 16)
