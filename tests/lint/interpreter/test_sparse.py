"""Sparse tensors: each `forward` is linted, and run through tpuport, which must agree."""

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

# torch says once that sparse rows are in beta, and that it does not check indices.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        graph = torch.sparse_coo_tensor([[0, 1], [2, 0]], [1.0, 2.0], (3, 3)).coalesce()
        self.register_buffer("graph", graph.t().float())
        self.register_buffer("rows", torch.eye(3).to_sparse_csr(), persistent=False)
        self.register_buffer("dense", graph.to_dense())
        self.register_buffer("indices", graph.indices())

    def forward(self, x: torch.Tensor):
"""
READS = {
    "sparse.mm": "return torch.sparse.mm(self.graph, x)",
    "operator": "return self.rows @ x",
    "on the right": "return (x.t() @ self.graph).t()",
    "method": "return self.graph.mm(x)",
    "matmul": "return torch.matmul(self.graph, x)",
    "made dense": "return self.graph.to_dense() @ x",
    "in a variable": "graph = self.graph\nif x.shape[0] == 3:\n    x = torch.mm(graph, x)\nreturn x",
    "of the device": "return x.to_sparse() @ x.t()",
}
TRACES = {
    "size": "return x * self.graph.size(0) + self.rows.shape[1] + self.graph.dim()",
    "layout": "return x * 2 if self.graph.is_sparse else x",
    "dense": "return self.dense @ x",
    "indices": "return x.index_add(0, self.indices[0], x[self.indices[1]])",
}


def model_file(directory: Path, body: str) -> Path:
    path = directory / "sparse_model.py"
    path.write_text(MODEL + textwrap.indent(body, " " * 8) + "\n")
    return path


def errors(path: Path) -> list[str]:
    findings = Analyser(Options(tuple(all_rules()))).analyse(read(path, str(path))).findings
    return [finding.rule for finding in findings if finding.stops_trace]


def run(path: Path) -> None:
    spec = importlib.util.spec_from_file_location("sparse_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = torch.arange(12.0).reshape(3, 4)
    expected = module.Model()(x)
    torch.testing.assert_close(tpuport.to_cpu(tpuport.port(module.Model())(x)), expected)


@pytest.mark.parametrize("body", READS.values(), ids=READS)
def test_what_reads_a_sparse_tensor_is_an_error(tmp_path: Path, body: str) -> None:
    path = model_file(tmp_path, body)
    assert errors(path) == ["TPU114"]
    with pytest.raises(PortError):
        run(path)


@pytest.mark.parametrize("body", TRACES.values(), ids=TRACES)
def test_what_only_asks_for_its_size_is_none(tmp_path: Path, body: str) -> None:
    path = model_file(tmp_path, body)
    assert errors(path) == []
    run(path)
