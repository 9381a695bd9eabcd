"""A transformer for tables, written with functions over a dictionary of parameters; clean."""
import math
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from operator import mul
from typing import Any, Callable, Dict, List, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    n_num: int = 3
    cardinalities: tuple = (4, 5)
    dim: int = 8
    depth: int = 2
    heads: int = 2
    act: str = "geglu"
    dims_out: List[int] = field(default_factory=lambda: [1, 3])
    pool: Optional[str] = None

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @classmethod
    def make(cls, **kw):
        known = {k: v for k, v in kw.items() if k in cls.__dataclass_fields__}
        return cls(**known)


def prod(xs):
    return reduce(mul, xs, 1)


def geglu(x):
    a, b = x.chunk(2, dim=-1)
    return a * F.gelu(b)


ACTS: Dict[str, Callable] = {"geglu": geglu, "relu": lambda x: F.relu(x)[..., : x.shape[-1] // 2]}


@lru_cache(maxsize=None)
def slopes(heads: int) -> tuple:
    start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
    return tuple(start * start ** i for i in range(heads))


def linear(p, name, x):
    return F.linear(x, p[f"{name}_w"], p.get(f"{name}_b"))


def layer_norm(p, name, x, eps=1e-5):
    return F.layer_norm(x, x.shape[-1:], p[f"{name}_w"], p[f"{name}_b"], eps)


def attention(p: Dict[str, Tensor], cfg: Config, x: Tensor, mask: Optional[Tensor] = None):
    *lead, n, d = x.shape
    flat = x.reshape(prod(lead), n, d)
    q, k, v = (linear(p, k, flat).view(-1, n, cfg.heads, cfg.head_dim).transpose(1, 2) for k in "qkv")
    sim = q @ k.mT / math.sqrt(cfg.head_dim)
    dist = (torch.arange(n, device=x.device)[:, None] - torch.arange(n, device=x.device)[None]).abs()
    sim = sim - dist * torch.tensor(slopes(cfg.heads), device=x.device).view(-1, 1, 1)
    if mask is not None:
        sim = sim.masked_fill(~mask[:, None, None], torch.finfo(sim.dtype).min)
    out = (sim.softmax(-1) @ v).transpose(1, 2).reshape(*lead, n, d)
    return linear(p, "o", out)


def block(p, cfg, x, mask=None):
    x = x + attention(p, cfg, layer_norm(p, "ln1", x), mask)
    hidden = ACTS[cfg.act](linear(p, "up", layer_norm(p, "ln2", x)))
    return x + linear(p, "down", hidden)


def init_block(cfg, gen=torch.randn):
    p = {}
    for name, (o, i) in dict(q=(1, 1), k=(1, 1), v=(1, 1), o=(1, 1), up=(4, 1), down=(1, 2)).items():
        p[f"{name}_w"] = nn.Parameter(gen(o * cfg.dim, i * cfg.dim) * 0.02)
        if name in ("up", "down"):
            p[f"{name}_b"] = nn.Parameter(torch.zeros(o * cfg.dim))
    for name in ("ln1", "ln2"):
        p[f"{name}_w"], p[f"{name}_b"] = nn.Parameter(torch.ones(cfg.dim)), nn.Parameter(torch.zeros(cfg.dim))
    return p


class TabTransformer(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = cfg
        self.num_w, self.num_b = nn.Parameter(torch.randn(cfg.n_num, cfg.dim)), nn.Parameter(torch.zeros(cfg.n_num, cfg.dim))
        self.register_buffer("offsets", torch.tensor([0, *cfg.cardinalities[:-1]]).cumsum(0))
        self.cat = nn.Embedding(sum(cfg.cardinalities), cfg.dim)
        self.cls = nn.Parameter(torch.zeros(1, 1, cfg.dim))
        self.layers = nn.ModuleList([nn.ParameterDict(init_block(cfg)) for _ in range(cfg.depth)])
        self.outs = nn.ModuleList([nn.Linear(cfg.dim, n) for n in cfg.dims_out])

    def embed(self, batch: Dict[str, Tensor]) -> Tensor:
        parts = [self.cls.expand(len(next(iter(batch.values()))), -1, -1)]
        if "num" in batch:
            parts.append(batch["num"][..., None] * self.num_w + self.num_b)
        if (cat := batch.get("cat")) is not None:
            parts.append(self.cat(cat + self.offsets))
        return torch.cat(parts, dim=1)

    def forward(self, batch: Dict[str, Any]):
        x = self.embed(batch)
        mask = None
        if "missing" in batch:
            mask = F.pad(~batch["missing"], (x.shape[1] - batch["missing"].shape[1], 0), value=True)
        for i, p in enumerate(self.layers):
            last = i == len(self.layers) - 1
            x = block(p, self.cfg, x, None if last else mask)
        pooled = x[:, 0] if not self.cfg.pool else getattr(x, self.cfg.pool)(dim=1)
        sizes = [o.out_features for o in self.outs]
        joined = torch.cat([o(pooled) for o in self.outs], -1)
        return {f"out{i}": part for i, part in enumerate(joined.split(sizes, dim=-1))}


def tiny():
    batch = {"num": torch.randn(3, 3), "cat": torch.randint(0, 4, (3, 2)), "missing": torch.rand(3, 5) > 0.7}
    return TabTransformer(Config.make(depth=2, pool="mean", unused=1)).eval(), [{"batch": batch}, {"batch": {"num": torch.randn(2, 3)}}]
