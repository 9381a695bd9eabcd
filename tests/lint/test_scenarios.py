"""The calls that a finding belongs to: each snippet's `#!` comments give the rule and the scenario."""

import re
import textwrap
from pathlib import Path

import pytest

from tpuport.lint.analysis import Analyser, Options
from tpuport.lint.findings import Finding, Severity
from tpuport.lint.rules import all_rules
from tpuport.lint.source import read

HEAD = "import torch\nfrom torch import nn\n"
CACHE = """
class Cache:
    def get_seq_length(self):
        return 3

"""
CASES = {
    "every call": """
class Model(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None):
        return x * x.sum().item()  #! TPU201
""",
    "only without a mask": """
class Model(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None):
        if mask is None:
            mask = x != 0
            n = int(x.sum())  #! TPU204 Model.forward without `mask`
        return x * mask
""",
    "only with a mask, in a helper": """
def longest(mask):
    return mask.sum(1).max().item()  #! TPU201 Model.forward with `mask`

class Model(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: torch.Tensor | None = None):
        n = x.shape[1] if mask is None else longest(mask)
        return x[:, :n]
""",
    "only with one of many arguments": """
class Model(nn.Module):
    def forward(
        self, x: torch.Tensor, a: torch.Tensor | None = None, b: torch.Tensor | None = None,
        c: torch.Tensor | None = None, d: torch.Tensor | None = None, e: torch.Tensor | None = None,
        f: torch.Tensor | None = None, g: torch.Tensor | None = None,
    ):
        if e is not None:
            x = x[:, : e.max()]  #! TPU108 Model.forward with `e`
        if g is not None and b is not None:
            x = x * g.item()  #! TPU201 Model.forward with `g`
        return x * x.sum().item()  #! TPU201
""",
    "a number in one call, a tensor in another": """
class Model(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None):
        n = x.shape[1] if lengths is None else lengths.max()
        for _ in range(n):  #! TPU208 Model.forward with `lengths`
            x = x * 2
        return x
""",
    "a decoding step": CACHE
    + """
class Model(nn.Module):
    def forward(self, ids: torch.LongTensor, positions: torch.LongTensor, past_key_values: Cache | None = None):
        past = past_key_values.get_seq_length() if past_key_values is not None else 0
        n = ids.shape[1]
        positions = positions[:, past : past + n]  #! TPU108 CACHED
        mask = torch.ones(2, past + n, device=ids.device)  #! TPU107 CACHED
        if past > 0:  #! TPU205 CACHED
            ids = ids[:, -1:]
        return ids * torch.arange(past, past + n, device=ids.device)  #! TPU107 CACHED
""",
    "with one of many and without another": """
class Model(nn.Module):
    def forward(
        self, x: torch.Tensor, embeds: torch.Tensor | None = None, pixels: torch.Tensor | None = None,
        a=None, b=None, c=None, d=None, e=None,
    ):
        if embeds is None and pixels is not None:
            x = x[:, : pixels.max()]  #! TPU108 Model.forward with some optional arguments
        return x if embeds is None else x + embeds.sum()
""",
    "a cache that only its use tells": """
class Model(nn.Module):
    def forward(self, ids: torch.LongTensor, cache=None):
        if cache is not None and cache.get_seq_length() > 0:  #! TPU205 CACHED
            ids = ids[:, -1:]
        return ids
""",
    "a cache of another kind": """
class Model(nn.Module):
    def forward(self, ids: torch.LongTensor, cache=None):
        if cache is not None and cache["length"] > 0:
            ids = ids[:, -1:]
        return ids
""",
    "a decoding step that makes up what generation passes": CACHE
    + """
class Inner(nn.Module):
    def forward(self, ids: torch.LongTensor, attention_mask=None, past_key_values: Cache | None = None):
        past = past_key_values.get_seq_length() if past_key_values is not None else 0
        if attention_mask is None:
            n = past + ids.shape[1]
            attention_mask = torch.ones(2, n, device=ids.device)  #! TPU107 CACHED, without `attention_mask`
        return ids * attention_mask[:, past:]  #! TPU108 CACHED

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(
        self, ids: torch.LongTensor, attention_mask: torch.Tensor | None = None, past_key_values: Cache | None = None
    ):
        return self.inner(ids, attention_mask, past_key_values)
""",
    "the halves of an autoencoder": """
class VAE(nn.Module):
    def encode(self, texts: list[str]):
        return self.tokenizer(texts).item()

    def decode(self, z: torch.Tensor, mask=None):
        return z[:, : z.max()]  #! TPU108

    def tiled_decode(self, z: torch.Tensor):
        return z.tolist()  #! TPU202
""",
    "a loop of the host": """
class Model(nn.Module):
    def forward(self, ids: torch.Tensor, steps=2):
        for _ in range(steps):  #! TPU208 Model.generate
            ids = ids * 2
        return ids

    def generate(self, ids: torch.Tensor):
        while ids.max() < 5:
            ids = self(ids, steps=ids.max())
        return ids.tolist()
""",
    "a pipeline": """
class Model(nn.Module):
    def forward(self, x: torch.Tensor, times=4):
        return x.repeat(times, 1)  #! TPU107 MyPipeline.__call__

class MyPipeline:
    def __init__(self, model: Model):
        self.register_modules(model=model)

    def __call__(self, x: torch.Tensor):
        return self.model(x, x.sum()).cpu().numpy()
""",
    "a plain object's tensors, which no module moves": """
class Table:
    def __init__(self, n: int):
        self.sizes = torch.arange(n)
        self.steps = torch.arange(n)

    def length(self, x):
        return int(self.sizes.max())

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = Table(4)
        self.register_buffer("sizes", torch.arange(4))

    def forward(self, x: torch.Tensor):
        return x[:, : self.table.length(x)] * int(self.sizes.max())  #! TPU204
""",
}
SCHEDULER = """
class Scheduler:
    def __init__(self, n: int = 1000):
        self.timesteps = torch.arange(n)
        self.sigmas = torch.linspace(0, 1, n)
        self._index = None

    def set_timesteps(self, n: int, device=None):
        self.timesteps = torch.arange(n).to(device=device)

    @property
    def index(self) -> int:
        return self._index

    def step(self, prediction: torch.Tensor, timestep: int, sample: torch.Tensor, previous: int | None = None):
        if self.index is None:
            self._index = (self.timesteps == timestep).nonzero()[0].item()
        if isinstance(timestep, (torch.IntTensor, torch.LongTensor)):
            raise ValueError("pass one of scheduler.timesteps")
        if self.sigmas[self.index] > 0.5:
            sample = sample * 2
        if previous is None:
            previous = timestep - 1
        if previous >= 0:
            sample = sample + prediction
        if sample.max() > 9:
            sample = sample / 9
        return sample
"""
STEP = "Scheduler.step in a compiled loop"
WITH_TENSOR = f"{STEP}, with a tensor as `timestep`"
CACHED = "Model.forward in a step with a static cache as `past_key_values`"


def expected(code: str) -> set[tuple[int, str, str]]:
    marks = set()
    cached = CACHED if "past_key_values" in code else CACHED.replace("past_key_values", "cache")
    for number, line in enumerate(code.splitlines(), 1):
        if match := re.search(r"#! (TPU\d+) ?(.*)$", line):
            marks.add((number, match[1], match[2].replace("CACHED", cached)))
    return marks


@pytest.mark.parametrize("code", CASES.values(), ids=CASES)
def test_each_finding_names_its_calls(tmp_path: Path, code: str) -> None:
    path = tmp_path / "model.py"
    path.write_text(HEAD + textwrap.dedent(code))
    findings = Analyser(Options(all_rules())).analyse(read(path, str(path))).findings
    stops = {(finding.line, finding.rule, finding.scenario) for finding in findings if finding.stops_trace}
    assert stops == expected(path.read_text())


def test_the_message_names_the_calls(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(HEAD + CASES["only without a mask"])
    (finding,) = Analyser(Options(all_rules())).analyse(read(path, str(path))).findings
    assert finding.message == f"{finding.reason} (in Model.forward without `mask`)"


def lint(tmp_path: Path, code: str, **options) -> list[Finding]:
    path = tmp_path / "model.py"
    path.write_text(HEAD + code)
    return Analyser(Options(all_rules(), **options)).analyse(read(path, str(path))).findings


@pytest.mark.parametrize("compiled", [(), ("Scheduler.step",)], ids=["on the host", "compiled"])
def test_a_scheduler_says_what_stops_a_compiled_step(tmp_path: Path, compiled: tuple[str, ...]) -> None:
    findings = lint(tmp_path, SCHEDULER, entry_points=compiled)
    lines = (HEAD + SCHEDULER).splitlines()
    stops = {
        (lines[finding.line - 1].strip().split()[1], finding.rule, finding.scenario)
        for finding in findings
        if finding.rule.startswith(("TPU1", "TPU2"))
    }
    assert stops == {
        ("=", "TPU102", WITH_TENSOR),
        ("=", "TPU201", WITH_TENSOR),
        ("previous", "TPU205", WITH_TENSOR),
        ("sample.max()", "TPU205", STEP if not compiled else ""),
    }
    severities = {finding.severity for finding in findings if finding.rule.startswith(("TPU1", "TPU2"))}
    assert severities == {Severity.ERROR if compiled else Severity.WARNING}


def test_what_else_has_a_step_runs_on_the_host(tmp_path: Path) -> None:
    assert lint(tmp_path, SCHEDULER.replace("set_timesteps", "set_rates")) == []
