"""Tensors of the host in traced code: each body is linted, and run through tpuport, which must agree."""

import importlib.util
import textwrap
from pathlib import Path

import pytest
import torch

import tpuport
from tpuport.errors import PortError
from tpuport.lint.analysis import Analyser, Options
from tpuport.lint.rules import all_rules
from tpuport.lint.source import read

TRACES = {
    "list of sizes": "return x * torch.tensor([x.shape[0], 2]).tolist()[0]",
    "assertion": "lengths = torch.tensor([u.shape[0] for u in x])\nassert lengths.max() <= 3\nreturn x",
    "condition on an element": "return x * 2 if torch.tensor([x.shape[0], 2])[0] > 1 else x",
    "bound of a slice": "return x[: torch.tensor(2)]",
    "arithmetic": "return x * (torch.tensor([x.shape[0], 2]) * 2 + 1).tolist()[0]",
    "stacked": """
        sizes = torch.stack([torch.tensor(u.shape, dtype=torch.long) for u in x])
        return x * sum(h + w for h, w in sizes.tolist())
    """,
    "product of a row": "return x * math.prod(torch.tensor([x.shape[0], 2])[0:2])",
    "product of a traced row": "return x * math.prod(x[0, 0])",
    "range": "for _ in range(torch.tensor(2)):\n    x = x * 2\nreturn x",
    "mask of positions": "return x[:, torch.arange(3) < 2]",
    "nonzero": "return x[:, torch.tensor([0, 1, 1]).nonzero().squeeze(1)]",
    "numpy": "return x * int(torch.tensor([x.shape[0]]).numpy()[0])",
    "all": "return x * 2 if (torch.tensor([2, 2]) == 2).all() else x",
    "written": "t = torch.zeros(3, dtype=torch.long)\nt[0] = 2\nreturn x * t.tolist()[0]",
    "device of the host": "return x * torch.arange(3, device='cpu').tolist()[1]",
    "no device": "return x * torch.arange(3, device=None).tolist()[1]",
    "device of a tensor of the host": "t = torch.arange(3)\nreturn x * torch.ones(2, device=t.device).tolist()[1]",
    "split": "return torch.split(x, torch.tensor([1, 2]).tolist(), dim=1)[0]",
    "class of tensors": "return x[: torch.IntTensor([getattr(self, 'size', 2)])[0]]",
    "between the device's numbers": "return x.clamp(x.min(), x.max()).clamp(min=x.mean())",
    "elements": "h, w = torch.tensor(x.shape[:2]).unbind(0)\nreturn x.reshape(int(h) * int(w), -1)",
}
FAILS = {
    "moved": "return x * torch.tensor([x.shape[0], 2]).to(x.device).tolist()[0]",
    "created on the device": "return x * torch.tensor([x.shape[0]], device=x.device).tolist()[0]",
    "condition": "return x if torch.tensor([2], device=x.device).max() > 1 else x * 2",
    "of a traced tensor": "return x * x.new_tensor([1, 2]).tolist()[0]",
    "like a traced tensor": "return x * torch.zeros_like(x).tolist()[0][0][0]",
    "of its type": "return x * torch.arange(3).type_as(x).tolist()[1]",
    "as it": "return x * torch.arange(3).to(x).tolist()[1]",
    "combined": "return x * (torch.tensor(2.0) * x[0, 0, 0]).item()",
    "drawn": "return x * torch.rand(3).tolist()[0]",
    "permutation": "return x * torch.randperm(4).tolist()[0]",
    "math": "return x * math.isclose(x[0, 0, 0], 1)",
    "class of tensors and sizes": "t = torch.BoolTensor(4).fill_(1)\nreturn x[..., t]",
    "filled with the device's number": "t = torch.zeros(4)\nt.fill_(x[0, 0, 0])\nreturn x * t.tolist()[0]",
    "between a number and the device's": "return x.clamp(0, x.max())",
}
# One tensor of the host and one on the device: what takes both, and what does not.
TAKES_BOTH = {
    "index": "return x[:, torch.tensor([0, 2])]",
    "mask as an index": "return x[torch.tensor([True, False])]",
    "masked write": "y = x.clone()\ny[torch.tensor([True, False])] = 0.0\nreturn y",
    "indexed write": "y = x.clone()\ny[torch.tensor([1, 0])] = x\nreturn y",
    "written": "y = x.clone()\ny[0, 0] = torch.ones(4)\nreturn y",
    "copied": "return x.clone().copy_(torch.ones(2, 3, 4))",
    "like its dtype": "return x + torch.ones(4).type_as(x)",
    "moved": "return x + torch.ones(4).to(x)",
    "expanded": "return x + torch.ones(4).expand_as(x).to(x.device)",
    "repeated": "return x.repeat_interleave(torch.tensor([1, 2]), dim=0)",
    "number": "return x * torch.tensor(2.0)",
    "single elements": "return x + torch.ones(1, 1) + torch.tensor([[2.0]]) + torch.arange(1)",
    "row of a single element": "return x + torch.ones(3, 1)[0]",
    "element": "return x + torch.arange(3)[1]",
    "elements one by one": "for step in torch.linspace(0, 1, 3):\n    x = x + step\nreturn x",
    "sum": "return x + torch.arange(3).sum()",
    "reduced to one": "return x + torch.ones(1, 3).mean(-1, keepdim=True)",
    "layer without weights": "return x + torch.nn.ReLU()(torch.ones(4)).to(x.device)",
}
REFUSES_BOTH = {
    "masked_fill": "return x.masked_fill(torch.ones(4, dtype=torch.bool), 0.0)",
    "function": "return torch.masked_fill(x, torch.ones(4, dtype=torch.bool), 0.0)",
    "condition of where": "return torch.where(torch.ones(4, dtype=torch.bool), x, 0.0)",
    "operand of where": "return torch.where(x > 0, torch.zeros(4), x)",
    "where between numbers": "return x + torch.where(torch.ones(4) > 0, 1.0, 2.0).to(x.device)",
    "cat": "return torch.cat([x, torch.zeros(2, 3, 4)])",
    "stack": "return torch.stack([torch.zeros(2, 3, 4), x])",
    "gather": "return x.gather(2, torch.zeros(2, 3, 2, dtype=torch.long))",
    "index_select": "return x.index_select(1, torch.tensor([0, 2]))",
    "attention": "return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(3, 3))",
    "arithmetic": "return x * torch.arange(4)",
    "in place": "x = x.clone()\nx += torch.ones(4)\nreturn x",
    "comparison": "return x < torch.ones(4)",
    "logic": "return (x > 0) & torch.ones(4, dtype=torch.bool)",
    "matmul": "return x @ torch.eye(4)",
    "computed": "return x + (torch.arange(4) * 2.0).exp().unsqueeze(0)",
    "slice of a table": "return x + torch.arange(100.0)[: x.shape[-1]]",
    "another dtype": "return x + torch.ones(4, dtype=torch.long).to(x.dtype)",
    "indexed by the device": "return torch.zeros(4, 3)[(x > 100).long()]",
    "written to from the device": "y = torch.zeros(2, 3, 4)\ny[0] = x[0]\nreturn y",
    "copied from the device": "return torch.zeros(2, 3, 4).copy_(x)",
    "argument of a function": "def shift(y, z):\n    return y + z\nreturn shift(x, torch.ones(4))",
    "argument of a layer": "return x + torch.nn.Linear(4, 4).to(x.device)(torch.ones(2, 4))[0]",
}


def module_file(directory: Path, body: str) -> Path:
    text = "import math\n\nimport torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n"
    text += "    def forward(self, x: torch.Tensor):\n" + textwrap.indent(
        textwrap.dedent(body).strip("\n"), " " * 8
    )
    path = directory / "placed.py"
    path.write_text(text + "\n")
    return path


def errors(path: Path) -> list[str]:
    findings = Analyser(Options(tuple(all_rules()))).analyse(read(path, str(path))).findings
    return [finding.rule for finding in findings if finding.stops_trace]


def run(path: Path) -> None:
    spec = importlib.util.spec_from_file_location("placed", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tpuport.compile(tpuport.port(module.Model()))(torch.arange(24.0).reshape(2, 3, 4))


@pytest.mark.parametrize("body", TRACES.values(), ids=TRACES)
def test_values_on_the_host_are_no_errors(tmp_path: Path, body: str) -> None:
    path = module_file(tmp_path, body)
    run(path)
    assert errors(path) == []


@pytest.mark.parametrize("body", FAILS.values(), ids=FAILS)
def test_what_reaches_the_device_is_traced(tmp_path: Path, body: str) -> None:
    path = module_file(tmp_path, body)
    with pytest.raises(PortError):
        run(path)
    assert errors(path) != []


@pytest.mark.parametrize("body", TAKES_BOTH.values(), ids=TAKES_BOTH)
def test_operations_that_take_tensors_of_both_places_are_no_errors(tmp_path: Path, body: str) -> None:
    path = module_file(tmp_path, body)
    run(path)
    assert errors(path) == []


@pytest.mark.parametrize("body", REFUSES_BOTH.values(), ids=REFUSES_BOTH)
def test_operations_on_tensors_of_both_places_are_errors(tmp_path: Path, body: str) -> None:
    path = module_file(tmp_path, body)
    with pytest.raises(PortError, match="TPU313"):
        run(path)
    assert errors(path) == ["TPU313"]


@pytest.mark.parametrize(
    "call", ["view(count, -1)", "expand(count, 4, 3)", "repeat(count, 1)", "reshape(count, -1)"]
)
def test_a_size_on_the_device_is_no_operand(tmp_path: Path, call: str) -> None:
    """It stops the trace by itself, and would wherever the tensor that gets it is."""
    path = module_file(tmp_path, f"count = x.argmax()\nreturn torch.ones(4, 3).{call}.to(x.device)")
    assert errors(path) == ["TPU107"]
