"""Habits of published repositories: a line that ends in `#! TPU305 error` has exactly these findings of GPU code."""

import re
from pathlib import Path

import pytest

from tpuport.lint.analysis import Analyser, Options
from tpuport.lint.rules import all_rules
from tpuport.lint.source import read

HEAD = "import functools\nimport math\nimport torch\nfrom torch import nn\nimport torch.distributed as dist\n"
FLASH = """
try:
    import flash_attn
    HAS_FLASH = True
except ModuleNotFoundError:
    HAS_FLASH = False
try:
    from flash_attn import flash_attn_func
except ImportError:
    flash_attn_func = None
"""
CASES = {
    "a device that is demanded": """
class Model(nn.Module):
    def forward(self, q: torch.Tensor):
        assert q.device.type == "cuda" and q.size(-1) <= 256  #! TPU302 error
        return q
""",
    "a device that is demanded with raise": """
class Model(nn.Module):
    def forward(self, q: torch.Tensor):
        if not q.is_cuda:
            raise ValueError("no GPU")  #! TPU302 error
        return q
""",
    "a device that is asked for": """
class Model(nn.Module):
    def forward(self, q: torch.Tensor):
        assert q.device.type in ("cuda", "xla") or q.ndim == 3
        if q.device.type == "cuda":
            torch.cuda.synchronize()
        return q
""",
    "flash attention demanded": FLASH
    + """
def attend(q, k, v, version=None):
    if version == 3 and HAS_FLASH:
        return flash_attn.flash_attn_func(q, k, v)
    assert HAS_FLASH  #! TPU305 error
    return flash_attn.flash_attn_func(q, k, v)  #! TPU305 error

class Model(nn.Module):
    def forward(self, q, k, v):
        return attend(q, k, v)
""",
    "flash attention as None": FLASH
    + """
class Model(nn.Module):
    def forward(self, q, k, v):
        return flash_attn_func(q, k, v)  #! TPU305 error
""",
    "flash attention with an alternative": FLASH
    + """
class Model(nn.Module):
    def forward(self, q, k, v):
        if HAS_FLASH:
            return flash_attn.flash_attn_func(q, k, v)
        if flash_attn_func is not None:
            return flash_attn_func(q, k, v)
        return nn.functional.scaled_dot_product_attention(q, k, v)
""",
    "flash attention by an option": FLASH
    + """
class Model(nn.Module):
    def forward(self, q, k, v):
        if self.use_flash:
            return flash_attn_func(q, k, v)  #! TPU305 warning
        return nn.functional.scaled_dot_product_attention(q, k, v)
""",
    "flex attention compiled in a try": """
try:
    from torch.nn.attention.flex_attention import flex_attention
    flex_attention = torch.compile(flex_attention)  #! TPU308 info
except ImportError:
    flex_attention = None

class Model(nn.Module):
    def forward(self, q, k, v):
        return flex_attention(q, k, v)
""",
    "a script": """
def main(args):
    if args.distributed:
        dist.init_process_group("nccl")  #! TPU309 warning
    for i in range(torch.cuda.device_count()):  #! TPU303 warning
        print(torch.device(f"cuda:{i}"))  #! TPU302 warning
    if args.timed:
        torch.cuda.synchronize()  #! TPU303 warning
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    device = torch.device(f"cuda:{args.rank}" if torch.cuda.is_available() else "cpu")
    try:
        torch.cuda.set_device(0)
    except RuntimeError:
        pass

if __name__ == "__main__":
    torch.cuda.synchronize()  #! TPU303 warning
    main(None)
""",
    "a lambda is not called by an import": """
to_gpu = lambda x: x.cuda()  #! TPU301 warning
wait = {"wait": lambda: torch.cuda.synchronize()}  #! TPU303 warning
""",
}


@pytest.mark.parametrize("code", CASES.values(), ids=CASES)
def test_gpu_code(tmp_path: Path, code: str) -> None:
    assert findings(tmp_path, HEAD + code, "TPU3") == expected(HEAD + code)


VALUES = {
    "a guidance that is None or a number": """
class Model(nn.Module):
    def forward(self, x: torch.Tensor, guidance=None, scale: float = None):
        if guidance:
            x = x + torch.full_like(x, guidance).abs()
        if scale and guidance is not None:
            x = torch.clamp(guidance, 0) * scale
        return x
""",
    "a function of shapes that remembers": """
@functools.cache
def window(h, w):
    return h * w

@functools.lru_cache(maxsize=None)
def grid(h, w):
    return torch.tensor([h, w])

class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        h, w = grid(*x.shape[:2]).tolist()
        return x * 2 if window(h, w) > 4 else x
""",
    "a decorator that remembers": """
def remembered(function):
    results = {}
    @functools.wraps(function)
    def inner(*sizes):
        if sizes in results:
            return results[sizes]
        results[sizes] = function(*sizes)
        return results[sizes]
    return inner

@remembered
def area(h, w):
    return h * w

class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        return x * 2 if area(*x.shape[:2]) > 4 else x
""",
    "a namespace of functions": """
from types import SimpleNamespace

def attend(q, cache_seqlens=None):
    position = cache_seqlens[0].item()  #! TPU201 error
    return q[:, position:]

kernels = SimpleNamespace(attend=attend)

class Model(nn.Module):
    def forward(self, x: torch.Tensor, cache=None):
        return kernels.attend(x, cache_seqlens=cache.lengths)
""",
}


@pytest.mark.parametrize("code", VALUES.values(), ids=VALUES)
def test_values(tmp_path: Path, code: str) -> None:
    assert findings(tmp_path, HEAD + code, "TPU") == expected(HEAD + code)


def expected(code: str) -> list[tuple[int, str]]:
    marks = [(number, re.search(r"#! (.*)$", line)) for number, line in enumerate(code.splitlines(), 1)]
    return [(number, mark[1]) for number, mark in marks if mark]


def findings(directory: Path, code: str, family: str) -> list[tuple[int, str]]:
    path = directory / "model.py"
    path.write_text(code)
    rules = tuple(rule for rule in all_rules() if rule.id.startswith(family) and rule.id != "TPU501")
    findings = Analyser(Options(rules)).analyse(read(path, str(path))).findings
    return sorted((finding.line, f"{finding.rule} {finding.severity}") for finding in findings)
