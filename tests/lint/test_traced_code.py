"""What is traced and what is not: entry points, and what they call."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tpuport.lint.findings import Severity
from tpuport.lint.interpreter.tracing_interpreter import _COMPUTES_NOTHING


def test_calls_are_followed_from_forward_and_nothing_else_is_traced(tree) -> None:
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
    assert [finding.route for finding in outcome.findings] == [
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
def test_host_code_is_no_error(tree, kind: str) -> None:
    tree.write("host.py", HOST[kind])
    assert tree.stops("host.py") == []


@pytest.mark.parametrize("kind", ["a pipeline", "a scheduler", "a dataset"])
def test_the_same_code_in_a_module_is_an_error(tree, kind: str) -> None:
    code = HOST[kind]
    for name in ("__call__", "step", "__getitem__"):
        code = code.replace(f"def {name}(", "def forward(")
    for name in ("Pipeline", "Scheduler", "Images(torch.utils.data.Dataset)"):
        code = code.replace(f"class {name}", "class Model(nn.Module)")
    tree.write("host.py", code.replace("(self, index)", "(self, index: torch.Tensor)"))
    assert tree.stops("host.py")


def test_gpu_code_at_import_is_an_error_though_nothing_is_traced(tree) -> None:
    tree.write("script.py", "torch.cuda.set_device(0)\n\n\ndef main():\n    torch.cuda.set_device(1)\n")
    findings = tree.analyse("script.py").findings
    rules = {finding.line: (finding.rule, finding.severity) for finding in findings}
    assert rules == {4: ("TPU303", Severity.ERROR), 8: ("TPU303", Severity.WARNING)}
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
def test_what_the_code_compiles_is_traced(tree, how: str) -> None:
    tree.write("sampling.py", COMPILED[how])
    (error,) = tree.stops("sampling.py")
    assert "x.item()" in error
    assert tree.analyse("sampling.py").entry_points == 1


def test_what_only_sounds_like_compiling_traces_nothing(tree) -> None:
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


def test_a_function_compiled_in_another_file_is_traced(tree) -> None:
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
def test_configured_entry_points(tree, patterns: tuple[str, ...], expected: list[str]) -> None:
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


def test_attention_processors_are_traced(tree) -> None:
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


def test_what_transformers_does_without_computing_is_not_followed(tree) -> None:
    """The functions exist under these names, a call gets to one of them, and nothing in it is traced."""
    for pattern in _COMPUTES_NOTHING:
        module, name = pattern.split(":")
        top, *path = module.split(".")
        file = Path(str(find_spec(top).origin)).parent.joinpath(*path).with_suffix(".py")
        assert f"\ndef {name}(" in file.read_text(encoding="utf-8")
    tree.write(
        "model.py",
        """
        from transformers.utils.output_capturing import maybe_install_capturing_hooks, selected_hidden_states

        class Model(nn.Module):
            def forward(self, x: torch.Tensor):
                maybe_install_capturing_hooks(self)
                selected_hidden_states(None)
                return x
        """,
    )
    names = {name.rpartition(":")[2] for name in tree.analyse("model.py").traced}
    assert names == {"Model.forward", "selected_hidden_states"}
