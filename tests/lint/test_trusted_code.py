"""Code of model libraries, which tpuport trusts while it traces: what the linter says of it is what a run does.

Each form of code is run as a library's, as the user's own, and in a model that the user derives from a library's.
"""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import tpuport
from tests.lint.conftest import CodeTree
from tpuport import compat
from tpuport.compat import user_frames
from tpuport.compat.operators import masked_selection
from tpuport.lint.analysis import Analyser, Options
from tpuport.lint.interpreter import class_facts, masked_reads
from tpuport.lint.rules import all_rules
from tpuport.lint.source import read

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

class {name}({base}):
    def __init__(self):
        super().__init__({arguments})
        self.linear = nn.Linear(4, 4)
        self.register_buffer("stride", torch.tensor(2))
        self.register_buffer("table", torch.arange(8.0))
        self.constant = torch.tensor(1)

    def forward(self, x: torch.Tensor):
"""
CHECKS = {
    "assert a comparison": "assert x.max() <= 100",
    "assert a number": "assert x.max().item() <= 100",
    "assert two": "assert not (x > 100).any() and x.min() > -100",
    "assert the item": "assert torch.all(x < 100).item()",
    "assert a chain": "assert -100 <= x.min() <= 100",
    "assert a float": "assert float(x.max()) <= 100",
    "raise": "if x.max() > 100:\n    raise ValueError('too large')",
    "raise for bool": "if bool((x > 100).any()):\n    raise ValueError",
    "raise or return": "if x.max() > 100:\n    raise ValueError\nelse:\n    x = x + 1",
    "raise after a line": "if x.max() > 100:\n    y = x.max()\n    raise ValueError(y)",
    "raise and handle": "try:\n    if x.max() > 100:\n        raise ValueError\nexcept ValueError:\n    x = x + 1",
    "assert and handle": "try:\n    assert x.max() <= 100\nexcept AssertionError:\n    x = x + 1",
    "assert in a try": "try:\n    assert x.max() <= 100\nfinally:\n    x = x + 1",
    "assert a member": "assert x.max().round() in (torch.tensor(100.0), x.max().round())",
    "branch": "if x.max() > 100:\n    x = x + 1",
    "compared answers": "assert (x.max() > 100 and True) == False",
    "torch's assert": "torch._assert((x < 100).all(), 'too large')",
    "torch's check": "torch._check(bool((x < 100).all()))",
    "a number before": "number = x.max().item()\nassert number <= 100",
}
DECIDED = {
    "a slice": "x = x[:, : self.stride]",
    "an attribute": "x = x[:, : self.constant]",
    "a size": "x = F.pad(x, (self.stride, max(0, x.shape[1] - self.stride)))",
    "a branch": "if self.table.sum() > 3:\n    x = x + 1",
    "of sizes": "x = x.view(2, torch.div(x.numel(), 2, rounding_mode='trunc'))",
    "a number": "x = x * self.table.max().item()",
    "of a product": "if self.linear(self.linear.weight).sum() > 3:\n    x = x + 1",
    "of a layer's weight": "if self.linear.weight.abs().max() > 3:\n    x = x + 1",
    "of a draw": "if torch.rand(2, device=x.device).sum() > 3:\n    x = x + 1",
    "of an input too": "if (self.table[:4] * x).sum() > 3:\n    x = x + 1",
    "moved": "x = x.to('cpu') + self.table[: self.stride].sum()",
    "a copy": "x = x.cpu() + 1",
    "a copy of a weight": "x = x + self.stride.cpu()",
    "an array": "x = x + float(self.table.numpy().sum())",
    "places": "x = x + self.table.nonzero().sum() + len(self.table[self.table > 3])",
    "a repetition": "x = x.repeat_interleave(self.stride, 0)",
    "a range": "x = x + torch.arange(self.stride, device=x.device).sum()",
    "on the device": "x = x[:, : torch.arange(3, device=x.device).max()]",
    "extremes": "x = x[:, : max(self.stride, 1)] + min(0, self.stride - 3)",
}
MASKED = {
    "written back": "mask = x > 0\ny = x.clone()\ny[mask] = x[mask] * 2 + 1\nx = y",
    "through layers": "mask = x.sum(-1) > 0\ny = x.clone()\ny[mask] = F.gelu(self.linear(x[mask]))\nx = y",
    "in place": "mask = x > 0\nx = x.clone()\nx[mask] *= 2",
    "in place, a quotient": "mask = x > 0\nx = x.clone()\nx[mask] /= 2",
    "in place, computed": "x = x.clone()\nx[x > 0] += 1",
    "counted": "x = x + x[x > 0].numel()",
    "under another mask": "y = x.clone()\ny[x > 0] = x[x > 0] * 2\nx = y",
    "summed": "x = x + x[x > 0].sum()",
    "returned": "x = x[x > 0]",
    "its shape": "x = x + x[x > 0].shape[0]",
    "logarithm": "mask = x > 0\ny = x.clone()\ny[mask] = x[mask].log()\nx = y",
    "as a bound": "x = x[:, : x[:, 0][x[:, 0] > 0].numel()]",
    "unused": "y = x[x > 0]",
    "coordinates": "x = x.clone()\nx[torch.where(x > 0)] = 0.0",
    "coordinates by name": "x = x.clone()\nrows, columns = (x > 0).nonzero(as_tuple=True)\nx[rows, columns] = 0.0",
    "a part of coordinates": "x = x.clone()\nrows, columns = torch.where(x > 0)\nx[rows] = 0.0",
    "coordinates read": "x = x[torch.where(x > 0)]",
    "coordinates counted": "x = x + len(torch.where(x > 0)[0])",
    "nonzero": "x = x + (x > 0).nonzero().sum()",
}
FORMS = {
    f"{kind}: {name}": code
    for kind, forms in (("checks", CHECKS), ("decided", DECIDED), ("masked", MASKED))
    for name, code in forms.items()
}
# Of each mechanism, one that only trusted code has, and one that none has.
SAMPLE = [
    "checks: assert a number",
    "checks: branch",
    "decided: a slice",
    "decided: moved",
    "masked: through layers",
]
INPUT = torch.tensor([[0.5, -1.0, 2.0, 0.25], [1.5, 1.0, -0.5, 3.0]])


def write(tree: CodeTree, code: str, home: str) -> Path:
    base, arguments = ("PreTrainedModel", "PretrainedConfig()") if home == "derived" else ("nn.Module", "")
    lines = [*code.splitlines(), "return x"]
    text = HEAD.format(name="Model", base=base, arguments=arguments) + "".join(
        f"        {line}\n" for line in lines
    )
    if home != "library":
        return tree.write("model.py", text, head="")
    for package in ("transformers", "transformers/models"):
        tree.write(f"{package}/__init__.py", "", head="")
    return tree.write("transformers/models/example.py", text, head="")


def runs(path: Path, home: str, caplog: pytest.LogCaptureFixture) -> bool:
    """Whether a compiled model gives what torch gives, by a program for all values."""
    name = "transformers.models.example" if home == "library" else "model"
    model: Any = runpy.run_path(str(path), run_name=name)["Model"]()
    expected = model(INPUT)
    compiled = tpuport.compile(tpuport.port(model))
    try:
        actual = compiled(INPUT)
    except tpuport.trace_errors.CannotTrace:
        return False
    torch.testing.assert_close(compat.to_torch(compat.as_jax(actual)), expected, rtol=1e-5, atol=1e-5)
    return "decides by" not in caplog.text


def errors(path: Path) -> list[str]:
    findings = Analyser(Options(tuple(all_rules()))).analyse(read(path, str(path))).findings
    return [finding.rule for finding in findings if finding.severity.name == "ERROR" and finding.stops]


def cases() -> list[Any]:
    """Every form in a library, and a sample of them elsewhere; the others take as long and say the same."""
    homes = {
        "library": set(FORMS),
        "own": set(FORMS) - {"decided: an attribute"},  # The linter takes it for moved, with the module.
        "derived": set(FORMS),
    }
    return [
        pytest.param(form, home, marks=[] if home == "library" or form in SAMPLE else pytest.mark.slow)
        for home, forms in homes.items()
        for form in sorted(forms)
    ]


@pytest.mark.parametrize(("form", "home"), cases())
def test_the_verdict_is_what_a_run_does(
    tree: CodeTree, caplog: pytest.LogCaptureFixture, form: str, home: str
) -> None:
    path = write(tree, FORMS[form], home)
    assert runs(path, home, caplog) == (not errors(path)), errors(path)


def test_the_linter_knows_what_is_computed_row_by_row() -> None:
    operators = {"radd": "add", "rsub": "sub", "rmul": "mul", "rand": "and", "ror": "or", "rxor": "xor"}
    names = (name.strip("_") for name in masked_selection._OF_ELEMENTS | masked_selection._OF_LAST_DIMENSIONS)
    assert {operators.get(name, name) for name in names} == masked_reads.BY_ROW
    assert masked_selection._PROPERTIES == masked_reads.KNOWN


def test_the_linter_knows_the_libraries() -> None:
    assert class_facts.MODEL_LIBRARIES == user_frames._MODEL_LIBRARIES


ASKED_ELSEWHERE = """
import torch
from torch import nn
from transformers import PreTrainedModel


def summed(rows):
    return rows.sum()


class Head(nn.Module):
    def forward(self, rows: torch.Tensor):
        return rows.sum()


class Selecting(PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.head = Head()

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None):
        if mask is not None:
            x = x[mask > 0]
        return self.head(x) + summed(x)
"""


def test_a_read_is_blamed_on_those_who_select(tree: CodeTree) -> None:
    """Its number of elements is asked for in a part, which stops the trace only of what selects for it."""
    path = tree.write("model.py", ASKED_ELSEWHERE, head="")
    outcome = tree.analyse(path.name)
    stops = {entry.name: [stop.scenario for stop in entry.stops] for entry in outcome.entries}
    assert stops == {"Head": [], "Selecting": ["Selecting.forward with `mask`"]}
    assert tree.stops(path.name) == ["model.py Selecting.forward: x[mask > 0]"]
