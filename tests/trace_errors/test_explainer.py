"""Models that cannot be traced: the line, the rule and the remedy, for code that is really traced."""

import contextlib
import importlib.util
import inspect
import linecache
import pickle
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import jax
import pytest
import torch
import transformers

import tpuport
from tpuport import trace_errors
from tpuport.errors import PortError
from tpuport.lint.rules import all_rules
from tpuport.patches import Patch, registry
from tpuport.patches.patch import Status
from tpuport.topology import compile_for
from tpuport.trace_errors import CannotTrace, TraceFailure, explain, has_model_code, is_explicable


def load(name: str, file: Path) -> ModuleType:
    """A module that is no part of an installed package; of an `__init__.py`, the package."""
    inside = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=inside)
    assert spec
    assert spec.loader
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HERE = Path(__file__).parent
load("failing_cases", HERE / "cases" / "__init__.py")
helpers, models, parents = (
    importlib.import_module(f"failing_cases.{name}") for name in ("helpers", "models", "parents")
)
oracle = load("failing_rules", HERE.parent / "lint" / "rules" / "oracle.py")
FILES = [Path(inspect.getfile(module)) for module in (models, helpers, parents)]
_MARK = re.compile(r"# (\w+) (TPU\d{3}|none)$")


def marked() -> dict[str, tuple[str, int, str | None]]:
    """Of each class, what the comments say: (file, line, rule)."""
    found = {}
    for file in FILES:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if mark := _MARK.search(line):
                found[mark[1]] = str(file), number, None if mark[2] == "none" else mark[2]
    return found


EXPECTED = marked()


def arguments(cls: type) -> tuple[torch.Tensor, ...]:
    wanted = inspect.signature(cls.forward).parameters
    both = torch.linspace(0.1, 1, 8).reshape(2, 4), torch.tensor([2, 3])
    return both if "lengths" in wanted and cls is not models.Plain else both[:1]


def failed(model: torch.nn.Module, *inputs: torch.Tensor) -> BaseException:
    """What tracing the model raises."""
    program = tpuport.compile(tpuport.port(model.eval()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program(*inputs)
        except Exception as error:  # noqa: BLE001 - whatever it is
            is_explained = isinstance(error, CannotTrace)
            return (is_explained and error.__cause__) or error
    raise AssertionError("it traces")


def explained(model: torch.nn.Module, *inputs: torch.Tensor) -> TraceFailure:
    return explain(failed(model, *inputs), model)


def test_every_case_says_where_it_fails() -> None:
    classes = {
        name for name, one in vars(models).items() if getattr(one, "__module__", "") == models.__name__
    }
    assert classes - {"Layer", "Output"} == EXPECTED.keys()
    assert len(EXPECTED) >= 30
    assert len({rule for _, _, rule in EXPECTED.values()}) >= 18


# The same rule, found on another line as in its other cases.
SLOW_CASES = {
    "Lambda",
    "Property",
    "Whole",
    "Root",
    "Fraction",
    "WhileLarge",
    "Reduced",
    "Comprehension",
    "Listed",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW_CASES else []) for name in EXPECTED]
)
def test_the_line_and_the_rule(name: str) -> None:
    cls, expected = getattr(models, name), EXPECTED[name]
    failure = explained(cls(), *arguments(cls))
    assert failure.source is not None
    assert (failure.source.file, failure.source.line, failure.rule) == expected, failure
    assert failure.source.code == linecache.getline(failure.source.file, failure.source.line).strip()
    assert failure.kind == "trace"
    assert failure.remedy
    assert "\n" not in failure.message
    assert "Traceback (most recent call last)" in failure.traceback
    # Torch itself runs what a rule is about, on the host, and refuses what is said to be the code's own error.
    said = failure.message
    if expected[2]:
        assert "cannot be traced: " in said
        assert runs(cls) or expected[2] == "TPU303"
    elif runs(cls):
        assert "no lowering of aten::" in said
    else:
        assert "an error of the code itself" in said


def runs(cls: type) -> bool:
    """Whether torch runs the model."""
    try:
        cls()(*arguments(cls))
    except Exception:  # noqa: BLE001 - whatever it is
        return False
    return True


# The models of TPU301 and TPU302 cannot even be built without a GPU.
RULES = [
    rule
    for rule in all_rules()
    if rule.harm in ("error", "cuda", "leaks") and rule.id not in ("TPU301", "TPU302")
]


# Rules that a case above has too.
_OF_CASES = {rule for name, (_, _, rule) in EXPECTED.items() if name not in SLOW_CASES}


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, id=rule.id, marks=[pytest.mark.slow] if rule.id in _OF_CASES else [])
        for rule in RULES
    ],
)
def test_the_linters_own_examples_are_explained_by_their_rules(rule, tmp_path: Path) -> None:
    shop = oracle.Workshop(tmp_path)
    inputs, error = oracle.inputs(rule.bad), None
    try:
        run = shop.compiled(rule.bad)
        run(*inputs)
        run(*(torch.cat([array, array]) for array in inputs))  # a tracer that leaked is met the second time
    except Exception as raised:  # noqa: BLE001 - whatever it is
        error = raised
    assert error is not None
    failure = explain(error, shop.model(rule.bad))
    assert failure.rule == rule.id, failure
    assert failure.source is not None
    assert Path(failure.source.file).parent == tmp_path


def test_a_cell_of_a_notebook_is_read_from_where_python_keeps_it() -> None:
    name, text = (
        "<ipython-input-7-abc>",
        "def forward(x):\n    y = x + 1\n    return y if y.sum() > 0 else x\n",
    )
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    scope = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), scope)
    failure = explained(helpers.Calling(scope["forward"]), torch.ones(2))
    assert failure.source is not None
    assert (failure.source.file, failure.source.line, failure.rule) == (name, 3, "TPU205")


def test_calls_that_lead_to_the_tracing_are_not_what_fails() -> None:
    failure = explained(models.Key(), torch.ones(2, 4))
    assert failure.source is not None
    assert failure.source.function == "Key.forward"
    assert "KeyError: 'cos'" in failure.message
    assert "test_explainer" in failure.traceback


def test_the_error_says_it_and_goes_to_another_process() -> None:
    failure = explained(models.Item(), torch.ones(2, 4))
    error = CannotTrace(failure)
    assert isinstance(error, PortError)
    text = str(error)
    assert f"{FILES[0]}, line {EXPECTED['Item'][1]}, in Item.forward" in text
    assert "fix: TPU201: " in text
    assert "Traceback" not in text
    assert pickle.loads(pickle.dumps(error)).failure == failure


def test_an_idle_patch_is_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    patch = Patch(
        name="cases.item", target=f"{models.__name__}:Item.forward", why="it reads a value",
        replacement="math:sqrt", source=(f"{'0' * 8}-{'0' * 32}",),
    )  # fmt: skip
    error, model = failed(models.Item(), torch.ones(2, 4)), models.Item()
    for state, wanted in (("off", "import tpuport.auto"), ("source differs", "tpuport patches")):
        monkeypatch.setattr(
            registry, "statuses", lambda state=state: [Status(patch, state, "1.0", "tests", (), "it is 2.0")]
        )
        failure = explain(error, model)
        assert wanted in failure.remedy
        assert "cases.item" in failure.remedy
        assert failure.rule == "TPU201"
    monkeypatch.setattr(
        registry, "statuses", lambda: [Status(patch, "applied", "1.0", "tests", (patch.target,))]
    )
    assert "cases.item" not in explain(error, model).remedy


def test_jaxs_own_frames_may_be_filtered_or_not() -> None:
    for filtering in ("off", "remove_frames", "tracebackhide"):
        with filtered(filtering):
            failure = explained(models.Condition(), torch.ones(2, 4))
        assert failure.source is not None
        assert (failure.source.line, failure.rule) == EXPECTED["Condition"][1:]


@contextlib.contextmanager
def filtered(how: str) -> Iterator[None]:
    before = jax.config.jax_traceback_filtering  # type: ignore[attr-defined]
    jax.config.update("jax_traceback_filtering", how)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_filtering", before)


def test_transformers_own_model_is_code_that_counts_and_its_plumbing_is_not() -> None:
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config)
    model.model.norm = models.Condition()  # type: ignore[assignment]
    failure = explained(model, torch.ones(1, 4, dtype=torch.long))
    assert failure.source is not None
    assert (failure.source.file, failure.source.line, failure.rule) == EXPECTED["Condition"]
    model.model.norm = torch.nn.Identity()  # type: ignore[assignment]
    model.config._attn_implementation = "eager"
    model.model.embed_tokens = torch.nn.Embedding(16, 6)
    failure = explained(model, torch.ones(1, 4, dtype=torch.long))
    assert failure.source is not None
    assert failure.source.file.endswith("transformers/models/llama/modeling_llama.py")
    assert "the shapes cannot be broadcast together, in float32[8] * float32[1,4,6]" in failure.message


@pytest.mark.parametrize("name", ["Condition", "Decorated", "FromHelper", "Shapes"])
def test_compiling_for_a_described_tpu_raises_it(name: str) -> None:
    cls = getattr(models, name)
    names = ["x", "lengths"] if name == "FromHelper" else ["x"]
    with pytest.raises(CannotTrace) as raised:
        compile_for(cls, dict(zip(names, arguments(cls), strict=True)), topology="v5e", tp=4)
    failure = raised.value.failure
    assert failure.source is not None
    assert (failure.source.file, failure.source.line, failure.rule) == EXPECTED[name]


def test_a_refusal_out_of_the_models_code_has_its_line() -> None:
    error = failed(helpers.Scaling(), torch.ones(2, 4))
    assert isinstance(error, PortError)
    assert has_model_code(error)
    failure = explain(error, helpers.Scaling())
    assert failure.rule == "TPU507"
    assert failure.source is not None
    assert failure.source.code == "return x * self.scale"
    assert "self.scale is neither a parameter nor a buffer" in failure.message
    assert not has_model_code(PortError("a mesh needs 3"))
    with pytest.raises(PortError, match="needs 3 devices") as raised:
        compile_for(helpers.Scaling, {"x": torch.ones(2, 4)}, topology="v5e", tp=3)
    assert not has_model_code(raised.value), "what leads to the tracing is no code of the model"


def test_compiling_names_the_line_and_the_rule() -> None:
    program = tpuport.compile(tpuport.port(models.Item().eval()))
    with pytest.raises(CannotTrace, match=r"(?s)Item\.forward cannot be traced.*fix: TPU201: ") as raised:
        program(torch.ones(2, 4))
    source = raised.value.failure.source
    assert source is not None
    assert (source.file, source.line) == EXPECTED["Item"][:2]


def test_an_error_that_is_not_about_tracing_is_left_to_the_caller_of_a_program() -> None:
    program = tpuport.compile(tpuport.port(models.Key().eval()))
    with pytest.raises(KeyError, match="cos"):
        program(torch.ones(2, 4))


class Interrupted:
    """A part of a pytree's structure whose comparison is interrupted."""

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        raise KeyboardInterrupt


def test_an_interrupt_that_jax_turns_into_an_error_remains_an_interrupt() -> None:
    class Leaf:
        pass

    jax.tree_util.register_pytree_node(
        Leaf, lambda leaf: ((1.0,), Interrupted()), lambda metadata, children: Leaf()
    )
    program = jax.jit(lambda leaf: 0)
    program(Leaf())
    with pytest.raises(KeyboardInterrupt) as caught, trace_errors.explained(program, catch=is_explicable):
        program(Leaf())
    assert isinstance(caught.value.__cause__, ValueError)


class StateOnTheHost(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = torch.nn.LSTM(4, 4)
        self.state = torch.zeros(1, 2, 4), torch.zeros(1, 2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.recurrent(x, self.state)[0]


def test_a_state_on_the_host_is_no_error_of_torch() -> None:
    model = StateOnTheHost()
    assert model(torch.ones(3, 2, 4)).shape == (3, 2, 4)
    with pytest.raises(PortError, match="one tensor is on the host") as error:
        tpuport.port(model)(torch.ones(3, 2, 4))
    assert "error of the code itself" not in str(error.value)
