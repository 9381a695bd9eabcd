"""module containers, outputs, configs, partials"""
import functools, importlib, inspect, math
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type, Union
import torch
import torch.nn.functional as F
from torch import nn, Tensor


class ModelOutput(OrderedDict):
    def __post_init__(self):
        for k in self.__dataclass_fields__:
            v = getattr(self, k)
            if v is not None:
                self[k] = v

    def to_tuple(self):
        return tuple(self[k] for k in self.keys())


@dataclass
class EncOut(ModelOutput):
    last: Tensor = None
    pooled: Optional[Tensor] = None
    aux: Optional[Dict[str, Tensor]] = None
    n: int = 0


@dataclass
class Cfg:
    dim: int = 4
    layers: Tuple[str, ...] = ("lin", "gate", "lin")
    act: str = "relu"
    drop: float = 0.0
    opts: Dict[str, Any] = field(default_factory=lambda: {"scale": 2.0})

    @classmethod
    def from_dict(cls, d):
        return cls(**{k: v for k, v in d.items() if k in cls.__dataclass_fields__})


class Gate(nn.Module):
    def __init__(self, dim, act_layer=nn.ReLU, norm_layer: Optional[Callable] = None):
        super().__init__()
        self.fc = nn.Linear(dim, 1)
        self.act = act_layer()
        self.norm = norm_layer(dim) if norm_layer else nn.Identity()

    def forward(self, x, ctx=None):
        g = self.act(self.fc(self.norm(x))).mean()
        if g > 0:
            x = x * g
        return x, g


class Lin(nn.Module):
    def __init__(self, dim, **kw):
        super().__init__()
        self.fc = nn.Linear(dim, dim)

    def forward(self, x, ctx=None):
        y = self.fc(x)
        return y, y.mean()


BLOCKS: Dict[str, Type[nn.Module]] = {"lin": Lin, "gate": Gate}


def make_block(kind, dim, **kwargs):
    return BLOCKS[kind](dim, **kwargs)


class Encoder(nn.Module):
    def __init__(self, cfg: Cfg):
        super().__init__()
        self.cfg = cfg
        self.blocks = nn.ModuleList([make_block(k, cfg.dim) for k in cfg.layers])
        self.named = nn.ModuleDict()
        for i, k in enumerate(cfg.layers):
            self.named[f"{k}_{i}"] = make_block(k, cfg.dim)
        self.add_module("tail", Lin(cfg.dim))
        for i in range(2):
            setattr(self, f"side{i}", Lin(cfg.dim))
        self.act = getattr(F, cfg.act)
        self.heads = nn.ModuleList()
        for i in range(2):
            self.heads.append(nn.ModuleList([nn.Linear(cfg.dim, 1), nn.Linear(cfg.dim, 2)]))
        self.pools = {"mean": self._mean, "max": self._max}
        self.register_buffer("seen", torch.zeros(1))

    def _mean(self, x):
        return x.mean()

    def _max(self, x):
        return x.max()

    def forward(self, x, pool="mean", return_dict=True):
        stats, aux = [], {}
        for blk in self.blocks:
            x, s = blk(x)
            stats.append(s)
        for s in stats:
            if s > 0:
                x = x + 1
        for name, blk in self.named.items():
            x, aux[name] = blk(x)
        for name, v in aux.items():
            if v > 0:
                x = x + 1
        x, t = self.tail(x)
        if t > 0:
            x = x + 1
        for i in range(2):
            x, s = getattr(self, f"side{i}")(x)
            if s > 0:
                x = x + 1
        outs = [[h(x).mean() for h in hs] for hs in self.heads]
        if outs[0][1] > 0:
            x = x + 1
        x = self.act(x)
        p = self.pools[pool](x)
        if p > 0:
            x = x + 1
        if not return_dict:
            return x, p
        return EncOut(last=x, pooled=p, aux=aux, n=len(stats))


class Residual(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x, **kw):
        out, *rest = self.fn(x, **kw)
        if rest[0] > 0:
            out = out * 2
        return out + x


class Reg(nn.Module):
    def __init__(self, inner_cls=Lin, depth=2, norm=partial(nn.LayerNorm, eps=1e-6)):
        super().__init__()
        build = partial(inner_cls, 4)
        self.layers = nn.Sequential(*[Residual(build()) for _ in range(depth)])
        self.norm = norm(4)
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(())) for _ in range(2)])
        self.table = nn.ParameterDict({"a": nn.Parameter(torch.ones(())), "b": nn.Parameter(torch.ones(()))})

    def forward(self, x):
        x = self.norm(self.layers(x))
        for s in self.scales:
            if s > 0:
                x = x * s
        for k, s in self.table.items():
            if s > 0:
                x = x * s
        if self.table["a"] > 2:
            x = x + 1
        return x


class Stage(NamedTuple):
    name: str
    fn: Callable
    scale: float = 1.0


class Pipeline(nn.Module):
    config_class = Cfg

    def __init__(self, cfg=None, **kwargs):
        super().__init__()
        cfg = cfg or self.config_class.from_dict(kwargs)
        self.cfg = cfg
        self.enc = Encoder(cfg)
        self.reg = Reg()
        self.crit = {"l1": F.l1_loss, "l2": F.mse_loss}
        self.weights = {"l1": 1.0, "l2": 0.5}
        self.stages = [Stage("a", self.stage_a), Stage("b", self.stage_b, 2.0)]
        self.callbacks: List[Callable] = []
        self.callbacks.append(self.on_end)

    def on_end(self, out, step):
        if out.pooled > 0:
            return step + 1
        return step

    def stage_a(self, x):
        return x.mean()

    def stage_b(self, x):
        return x.max()

    def losses(self, x, y):
        parts = {name: fn(x, y) * self.weights[name] for name, fn in self.crit.items()}
        parts["total"] = sum(parts.values())
        return parts

    def step(self, x, y):
        out = self.enc(x)
        if out.pooled > 0:
            x = x + 1
        if out["pooled"] > 0:
            x = x + 1
        if out.n > 2:
            x = x + 1
        h, p, *_ = out.to_tuple()
        z, q = self.enc(x, return_dict=False)
        if q > 0:
            x = x + 1
        for k, v in out.aux.items():
            if v > 0:
                x = x + 1
        for st in self.stages:
            v = st.fn(x) * st.scale
            if v > 0:
                x = x + 1
            if st.scale > 1:
                x = x + 1
        L = self.losses(out.last, y)
        if L["total"] > 0:
            x = x + 1
        logs = {f"train/{k}": float(v) for k, v in L.items()}
        if logs["train/l1"] > 3:
            x = x + 1
        for cb in self.callbacks:
            cb(out, 1)
        if self.cfg.opts["scale"] > 1:
            x = x + 1
        return self.reg(x), L

    def forward(self, x, y):
        x, L = self.step(x, y)
        return {"loss": L["total"], "x": x, "n": 3}


class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Pipeline(dim=4)
        self.best = None
        self.ema = None

    def training_step(self, batch):
        out = self.model(**batch)
        loss = out["loss"]
        if loss > 5:
            loss = loss * 0.5
        self.ema = loss if self.ema is None else self.ema * 0.9 + loss * 0.1
        if self.ema > 3:
            loss = loss + 0
        m = {"loss": loss, **{k: v for k, v in out.items() if k != "x"}}
        if m["loss"] > 3 or m["n"] > 4:
            loss = loss + 0
        if self.best is None or loss < self.best:
            self.best = loss
        return loss

    def forward(self, x, y):
        return self.training_step({"x": x, "y": y})


def tiny():
    return Trainer(), [{"x": torch.randn(3, 4), "y": torch.randn(3, 4)}]
