"""Code that torch refuses as well, and what only a device refuses: said apart, as torch itself is asked."""

import importlib.util
import linecache
import re
import sys
from pathlib import Path

import pytest
import torch

from tpuport import compat
from tpuport.compat.operators.fallbacks import find_operator
from tpuport.topology.lowering import lower_for
from tpuport.trace_errors import CannotTrace, TraceFailure, explain

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")

_CASES = Path(__file__).parent / "cases"


def _models():
    spec = importlib.util.spec_from_file_location("refused_cases", _CASES / "refused.py")
    assert spec
    assert spec.loader
    sys.modules["refused_cases"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


models = _models()
_MARK = re.compile(r"# (\w+)$")
LINES = {
    mark[1]: number
    for number, line in enumerate((_CASES / "refused.py").read_text().splitlines(), 1)
    if (mark := _MARK.search(line))
}
# What torch refuses: words of the message, and of the remedy.
REFUSED = {
    "Operands": ("float32[2,4] + float32[2,3]", "shapes"),
    "OperandsOfViews": ("float32[2,3] * float32[2,2]", "shapes"),
    "OperandsCalled": ("float32[2,4] > float32[2,3]", "shapes"),
    "OperandsInPlace": ("float32[2,4] - float32[2,3]", "shapes"),
    "Product": ("float32[2,4] @ float32[2,3]", "shapes"),
    "Width": ("linear(float32[2,8], float32[4,6], float32[4])", "shapes"),
    "Labels": ("einsum('ab,bc->ac', float32[2,4], float32[2,4])", "shapes"),
    "Channels": ("conv1d(float32[1,2,4], float32[8,3,2]", "shapes"),
    "Expanded": ("expand(float32[2,3], 2, 4)", "shapes"),
    "Written": ("float32[2,4][:, :3] = float32[2,4]", "shapes"),
    "Outside": ("float32[2,4][7]", "shapes"),
    "Axis": ("transpose(float32[2,4], 1, 2)", "shapes"),
    "Ids": ("embedding(float32[2,4], float32[8,4]", "in torch"),
    "Drawn": ("multinomial(float32[2,4], 5)", "shapes"),
    "Mixed": ("Input type (c10::BFloat16)", "dtype of the weights"),
    "Method": ("'Tensor' object has no attribute 'frobnicate'", "in torch"),
    "MethodOfTensor": ("'Tensor' object has no attribute 'frobnicate'", "in torch"),
    "Function": ("module 'torch' has no attribute 'frobnicate'", "in torch"),
    "Library": ("'mylib' object has no attribute 'frobnicate'", "in torch"),
    "Arguments": ("takes 2 positional arguments but 4 were given", "in torch"),
    "Keyword": ("unexpected keyword argument 'scale'", "in torch"),
    "Nothing": ("'Tensor' and 'NoneType'", "in torch"),
    "Raised": ("a Tensor of another kind is wanted", "in torch"),
}
# What torch takes: the rule, words of the message, and of the remedy.
_HOST = ("TPU313", "one tensor is on the host", "create it on the device")
TAKEN = {
    "ViewListed": ("TPU202", "`.tolist()` asks for values", "stay with tensors"),
    "ViewArray": ("TPU203", "NumPy needs values", "torch function of the same name"),
    "ViewNumPy": ("TPU203", "NumPy needs values", "torch function of the same name"),
    "ViewFormatted": ("TPU211", "no value to show", "print after the call"),
    "HostRead": _HOST,
    "HostRow": _HOST,
    "HostWritten": _HOST,
    "HostFilled": _HOST,
    "HostAdded": _HOST,
    "Gradient": (None, "autograd records nothing", "jax.grad"),
    "Backward": (None, "autograd records nothing", "jax.grad"),
    "Mapped": (None, "torch.func's transforms", "jax.vmap"),
    "Eigenvalues": (
        None,
        "is computed on the host, which a program for a described TPU cannot call",
        "outside of the compiled function",
    ),
}


def explained(model) -> TraceFailure:
    with pytest.raises(CannotTrace) as raised:
        lower_for(model, {"x": torch.empty(2, 4, device="meta")}, topology="v5e:1x1")
    return raised.value.failure


def runs(name: str) -> bool:
    """Whether torch itself runs the model."""
    try:
        getattr(models, name)()(torch.linspace(0.1, 1, 8).reshape(2, 4))
    except Exception:  # noqa: BLE001 - whatever it is
        return False
    return True


def at_its_line(failure: TraceFailure, name: str) -> bool:
    file, line = str(_CASES / "refused.py"), LINES[name]
    source = failure.source
    return source is not None and (source.file, source.line, source.code) == (
        file, line, linecache.getline(file, line).strip(),
    )  # fmt: skip


def test_every_case_is_in_a_table() -> None:
    assert REFUSED.keys() | TAKEN.keys() == LINES.keys()


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_is_an_error_of_the_code_itself(name: str) -> None:
    assert not runs(name)
    failure, (said, remedy) = explained(getattr(models, name)), REFUSED[name]
    assert at_its_line(failure, name), failure
    assert failure.message.startswith(f"{name}.forward fails with ")
    assert said in failure.message
    assert "; this is an error of the code itself, not of tracing it" in failure.message
    assert "'View'" not in failure.message
    assert remedy in failure.remedy
    assert failure.rule is None


@pytest.mark.parametrize("name", TAKEN)
def test_what_torch_takes_is_told_by_why_a_device_does_not(name: str) -> None:
    assert runs(name)
    failure, (rule, said, remedy) = explained(getattr(models, name)), TAKEN[name]
    assert at_its_line(failure, name), failure
    assert failure.rule == rule
    assert said in failure.message
    assert "error of the code itself" not in failure.message
    assert remedy in failure.remedy


def test_an_operation_that_torch_takes_and_torchax_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **options: object) -> None:
        raise ValueError("the lowering has a limit")

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cumsum(x, 0)

    known = find_operator(compat.environment(), torch.ops.aten.cumsum.default)
    monkeypatch.setattr(known, "func", _as_of(broken, "torchax.ops.jaten"))
    failure = explained(Model)
    assert (
        "cumsum(float32[2,4], 0), which torch accepts, ends with ValueError: the lowering has a limit"
        in failure.message
    )
    assert "limit of torchax" in failure.remedy
    assert failure.source is not None
    assert failure.source.line == Model.forward.__code__.co_firstlineno + 1


def test_what_torch_refuses_only_with_values() -> None:
    """Its kernels without values do not compare the dtypes."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.layer_norm(x, (4,), torch.ones(4, dtype=torch.bfloat16).to(x.device))

    with pytest.raises(RuntimeError, match="mixed dtype"):
        Model()(torch.ones(2, 4))
    message = explained(Model).message
    assert (
        "fails with RuntimeError: layer_norm() expects parameters that all have the input's dtype" in message
    )
    assert "torch accepts" not in message


def test_what_no_code_of_the_models_has_a_part_in_is_a_defect() -> None:
    def fail() -> None:
        raise ValueError("Input layout being donated was None. Did you mean to set it?")

    with pytest.raises(ValueError, match="Input layout") as raised:
        _as_of(fail, "jax._src.interpreters.pxla")()
    failure = explain(raised.value, torch.nn.Linear(2, 2))
    assert failure.kind == "defect"
    assert "Input layout being donated was None" in failure.message
    assert "defect of tpuport or of jax" in failure.message
    assert "cannot be traced" not in failure.message
    assert "--traceback" in failure.remedy
    assert failure.source is None
    assert "Input layout" in failure.traceback


def _as_of(function, module: str):
    """The function as one of another module's."""
    return type(function)(function.__code__, {"__name__": module, "__builtins__": __builtins__})
