"""Where the rules on GPU code, numerics and state speak, how loudly, and where they keep quiet."""

import textwrap
from pathlib import Path

import pytest

from tpuport.lint import source
from tpuport.lint.analysis import Analyser, Options
from tpuport.lint.rules import all_rules

HEAD = """
import functools

import torch
import torch.nn.functional as F
from torch import nn
"""


def rules_found_in(path: Path, code: str, family: str) -> list[str]:
    """The findings of one family in a file, as "TPU301 error"."""
    file = path / "model.py"
    file.write_text(f"{HEAD}\n\n{textwrap.dedent(code)}\n")
    rules = tuple(rule for rule in all_rules() if rule.id.startswith(family))
    findings = Analyser(Options(rules=rules)).analyse(source.read(file, str(file))).findings
    return [f"{finding.rule} {finding.severity}" for finding in findings]


def in_forward(path: Path, body: str, family: str) -> list[str]:
    """The findings in the body of a `forward(self, x, mask)`."""
    lines = textwrap.indent(textwrap.dedent(body).strip("\n"), "        ")
    head = (
        "class Model(nn.Module):\n    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None):\n"
    )
    return rules_found_in(path, f"\n\n{head}{lines}\n", family)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x.cuda()", []),
        ("return x + torch.ones(4).cuda()", []),
        ("if x.is_cuda:\n    x = x.cuda()\nreturn x", []),
        ('return x.to("cuda:1")', []),
        ('return x + torch.ones(4, device="cuda")', []),
        ('return x + torch.linspace(0, 1, 4, device="cuda")', []),
        ('return x + torch.zeros_like(x, device="cuda")', []),
        ('device = torch.device("cuda")\nreturn x.to(device)', ["TPU302 warning"]),
        ('return torch.randn(4, generator=torch.Generator("cuda"))', ["TPU302 error"]),
        # Without a GPU this sends a traced tensor to the host.
        ('return x.to("cuda" if torch.cuda.is_available() else "cpu")', ["TPU312 error"]),
        ('return x if str(x.device).startswith("cuda") else x * 2', []),
        ("torch.cuda.set_device(0)\nreturn x", ["TPU303 error"]),
        ("torch.cuda.manual_seed(0)\nreturn x * torch.cuda.device_count()", []),
        ('with torch.autocast("cuda"):\n    return x @ x', []),
        ("with torch.cuda.amp.autocast(enabled=True):\n    return x @ x", []),
        ("with torch.cuda.amp.autocast(enabled=False):\n    return x @ x", []),
        ("import flash_attn\nreturn x", ["TPU305 warning"]),
        ("stream = torch.cuda.current_stream()\nreturn x", ["TPU310 error"]),
        ("return torch.ones(4, pin_memory=True) if x.is_pinned() else x", ["TPU311 warning", "TPU311 error"]),
        ("return x.cpu()", ["TPU312 error"]),
        ("return x.cpu().numpy()", []),  # TPU203
        ("return x.cpu().exp().tolist()", ["TPU312 error"]),
        ('return x.to("cpu", torch.float32)', ["TPU312 error"]),
        ("return x.to(x.device)", []),
    ],
)
def test_gpu_code_in_forward(tmp_path: Path, body: str, expected: list[str]) -> None:
    assert in_forward(tmp_path, body, "TPU3") == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import xformers.ops", ["TPU305 warning"]),
        ("import flash_attn", ["TPU305 error"]),
        ("from flash_attn.bert_padding import pad_input", ["TPU305 error"]),
        ("try:\n    import triton\nexcept ImportError:\n    triton = None", []),
        ("from .triton import kernels", []),
        ("def train():\n    import deepspeed", ["TPU305 warning"]),
        ("if functools.cuda_is_here():\n    import apex", []),
        ("LIMIT = torch.cuda.get_device_capability()", ["TPU303 error"]),
        ("def main(model):\n    return model.cuda()", ["TPU301 warning"]),
        (
            """
            def load(path, device="cuda"):
                return torch.load(path, map_location=device)
            """,
            ["TPU302 warning"],
        ),
        (
            """
            def main():
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
            """,
            [],
        ),
        (
            """
            class M(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.w = nn.Linear(2, 2).cuda()
            """,
            ["TPU301 error"],
        ),
        (
            """
            class M(nn.Module):
                def cuda(self, device=None):
                    return super().cuda(device)
            """,
            [],
        ),
        ("import torch.distributed as dist\n\nRANK = dist.get_rank()", ["TPU309 error"]),
        (
            """
            import torch.distributed as dist

            RANK = dist.get_rank() if dist.is_initialized() else 0
            """,
            [],
        ),
        (
            """
            import torch.distributed as dist

            if dist.is_initialized():
                RANK = dist.get_rank()
            """,
            [],
        ),
        (
            """
            import torch.distributed as dist


            def setup():
                dist.init_process_group('nccl')
            """,
            ["TPU309 warning"],
        ),
        ("def speed(model):\n    return torch.compile(model)", []),
        (
            """
            class M(nn.Module):
                @torch.compile
                def forward(self, x):
                    return x
            """,
            ["TPU308 info"],
        ),
    ],
)
def test_gpu_code_elsewhere(tmp_path: Path, code: str, expected: list[str]) -> None:
    assert rules_found_in(tmp_path, code, "TPU3") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x.double()", ["TPU401 warning"]),
        ("return x.to(dtype=torch.double)", ["TPU401 warning"]),
        ("return x.float() if x.dtype == torch.float64 else x", []),
        ("return torch.finfo(torch.float64).eps * x", []),
        ("return x.half()", ["TPU402 warning"]),
        ("return x.new_zeros(4, dtype=torch.float16)", ["TPU402 warning"]),
        ("return x.clamp(max=torch.finfo(torch.float16).max) if x.dtype == torch.float16 else x", []),
        ("return torch.polar(x.abs(), x)", ["TPU403 warning"]),
        ("return x.to(torch.complex64)", ["TPU403 warning"]),
        ("return x.masked_fill(mask, -torch.inf)", ["TPU404 info"]),
        ('return torch.where(mask, x, float("-inf"))', ["TPU404 info"]),
        ("return x.masked_fill(mask, torch.finfo(x.dtype).min)", []),
        ("n = x.shape[1]\nreturn x @ torch.ones(n, n, device=x.device).tril()", ["TPU405 warning"]),
        ("n = x.shape[1]\nreturn x + torch.full((n, n), float('-inf'), device=x.device)", ["TPU405 warning"]),
        ("n, m = x.shape\nreturn torch.tril(torch.ones(n, m, device=x.device)) * x", []),
        ("return x.tril()", []),
    ],
)
def test_numerics_in_forward(tmp_path: Path, body: str, expected: list[str]) -> None:
    assert in_forward(tmp_path, body, "TPU4") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x + torch.arange(x.shape[1], device=x.device)", ["TPU501 info"]),
        ("return x + torch.arange(x.shape[1])", ["TPU501 warning"]),
        ("return x + torch.arange(x.shape[1]).to(x)", ["TPU501 info"]),
        ("return x + torch.zeros(2, 4)", ["TPU501 warning"]),
        ("return x * torch.tensor(2.0)", []),
        ("return x + torch.zeros_like(x)", []),
        ("self.kept = x * 2\nreturn x", ["TPU502 warning"]),
        ("self.kept = x * 2\nreturn self.kept", ["TPU502 warning"]),
        ("self.length = x.shape[0]\nself.given = mask is not None\nreturn x", []),
        ("self.kept.append(x)\nreturn x", []),
        ("return F.dropout(x, 0.1)", []),
        (
            "return F.dropout(x, 0.1, self.training) + F.dropout(x, p=0.1, training=False) + F.dropout(x, 0.0)",
            [],
        ),
        ("return x + torch.rand_like(x)", []),
        ("return x.clone().normal_()", []),
        ("torch.manual_seed(0)\nreturn x + torch.rand_like(x)", ["TPU506 warning"]),
        ("return x + torch.initial_seed()", ["TPU506 warning"]),
        ("return x + torch.default_generator.seed()", ["TPU506 warning"]),
        ("import random\nreturn x * random.uniform(0, 1)", ["TPU506 warning"]),
        ("import numpy as np\nreturn x * np.random.rand()", ["TPU506 warning"]),
        ("if self.training:\n    x = x + torch.rand_like(x)\nreturn x", []),
        ("x.view(-1).zero_()\nx[:, 0].fill_(1)\nx.transpose(0, 1)[0] = 1\nreturn x", []),
        ("x[0].add_(1)\nx.mul_(2)\nreturn x.view(-1).clamp_(0)", []),
    ],
)
def test_state_in_forward(tmp_path: Path, body: str, expected: list[str]) -> None:
    assert in_forward(tmp_path, body, "TPU5") == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            """
            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.seen = []

                def forward(self, x: torch.Tensor):
                    self.seen.append(x)
                    return x
            """,
            ["TPU503 warning"],
        ),
        (
            """
            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.seen = []

                def forward(self, x: torch.Tensor):
                    self.seen.append(x.shape)
                    return x
            """,
            [],
        ),
        (
            """
            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.register_buffer("b", torch.zeros(2))

                def forward(self, x: torch.Tensor):
                    self.b = self.b + x
                    return x
            """,
            ["TPU502 warning"],
        ),
        (
            """
            @functools.lru_cache
            def f(n):
                return n * 2


            class Model(nn.Module):
                def forward(self, x: torch.Tensor):
                    return x * f(x.shape[0])
            """,
            [],
        ),
        (
            """
            def f(x, seen={}):
                seen[0] = x
                return x


            class Model(nn.Module):
                def forward(self, x: torch.Tensor):
                    return f(x)
            """,
            ["TPU505 warning"],
        ),
        ("def host(x, seen={}):\n    seen[0] = x\n    return x", []),
        (
            """
            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.scale = torch.ones(2)
            """,
            ["TPU507 warning"],
        ),
        (
            """
            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.register_buffer("scale", torch.ones(2))
                    self.p = nn.Parameter(torch.ones(2))
            """,
            [],
        ),
        (
            """
            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.p = nn.Parameter(torch.ones(2))


            class Sub(Model):
                @property
                def p(self):
                    return 1
            """,
            ["TPU509 error"],
        ),
        (
            """
            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.p = nn.Parameter(torch.ones(2))

                @property
                def q(self):
                    return self.p * 2
            """,
            [],
        ),
        (
            """
            class Embedding(nn.Embedding):
                @property
                def weight(self):
                    return self.table
            """,
            ["TPU509 error"],
        ),
    ],
)
def test_state_of_classes(tmp_path: Path, code: str, expected: list[str]) -> None:
    assert rules_found_in(tmp_path, code, "TPU5") == expected


def test_a_gpu_function_called_without_a_condition_is_told_where_its_import_was_guarded(
    tmp_path: Path,
) -> None:
    code = """
try:
    from flash_attn import flash_attn_func
except ImportError:
    flash_attn_func = None


class Model(nn.Module):
    def forward(self, q, k, v):
        if flash_attn_func is not None:
            return flash_attn_func(q, k, v)
        return RETURNED
"""
    assert rules_found_in(tmp_path, code.replace("RETURNED", "q"), "TPU305") == []
    assert len(rules_found_in(tmp_path, code.replace("RETURNED", "flash_attn_func(q, k, v)"), "TPU305")) == 1


def test_a_constructor_s_settings_are_no_tensors(tmp_path: Path) -> None:
    code = """
class Model(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.dtype = cfg.dtype
        self.layer = nn.Linear(cfg.dim, 3)

    def forward(self, x):
        return self.layer(x.cuda() if torch.cuda.is_available() else x)
"""
    assert rules_found_in(tmp_path, code, "TPU") == []
