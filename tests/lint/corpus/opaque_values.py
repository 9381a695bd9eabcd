"""values whose use does not tell that they are tensors"""
import collections, copy, functools, itertools, operator
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field, asdict, astuple, fields, replace
from types import SimpleNamespace
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, TypedDict, Union
import torch
from torch import nn

Pair = namedtuple("Pair", ["a", "b", "k"])


class Losses(TypedDict):
    loss: torch.Tensor
    n: int


class Out(OrderedDict):
    def __getattr__(self, k):
        if k in self:
            return self[k]
        raise AttributeError(k)


class Data:
    """PyG manner."""
    def __init__(self, x=None, edge_index=None, **kwargs):
        self.x = x
        self.edge_index = edge_index
        for key, item in kwargs.items():
            setattr(self, key, item)

    @property
    def keys(self):
        return [k for k in self.__dict__.keys() if self.__dict__[k] is not None]

    def __getitem__(self, key):
        return getattr(self, key, None)

    def __setitem__(self, key, value):
        setattr(self, key, value)

    def __contains__(self, key):
        return key in self.keys

    def apply(self, func, *keys):
        for key in keys or self.keys:
            if torch.is_tensor(self[key]):
                self[key] = func(self[key])
        return self

    def to(self, device):
        return self.apply(lambda v: v.to(device))

    @property
    def num_nodes(self):
        return self.x.size(0)


@dataclass
class Rays:
    o: torch.Tensor
    d: torch.Tensor
    near: Optional[torch.Tensor] = None

    def map(self, fn):
        return Rays(**{f.name: fn(getattr(self, f.name)) if getattr(self, f.name) is not None else None for f in fields(self)})

    def __iter__(self):
        return iter((self.o, self.d))


def losses(x) -> Dict[str, torch.Tensor]:
    return {"a": x.mean(), "b": x.max(), "n": x.shape[0]}


def split_batch(b):
    return {k: (v[:1] if torch.is_tensor(v) else v) for k, v in b.items()}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4))
        self.weights = {"a": 1.0, "b": 2.0}

    def aug(self, x):
        t = {"a": 0, "b": 0, "n": 0}
        for i in range(2):
            t["a"] += x.mean()
            t["b"] = t["b"] + x.max()
            t["n"] += 1
        if t["a"] > 0:
            x = x + 1
        if t["b"] > 0:
            x = x + 1
        if t["n"] > 1:
            x = x + 1
        acc = [0, 0]
        acc[0] += x.mean()
        acc[1] += 2
        if acc[0] > 0:
            x = x + 1
        if acc[1] > 0:
            x = x + 1
        total = sum(losses(x)[k] * w for k, w in self.weights.items())
        if total > 0:
            x = x + 1
        return x

    def dicts(self, x):
        b = {"x": x, "m": x.mean(), "n": 3, "name": "q", "opt": None}
        b = {k: v.to(x.device) if isinstance(v, torch.Tensor) else v for k, v in b.items()}
        if b["m"] > 0:
            x = x + 1
        if b["n"] > 2:
            x = x + 1
        for k, v in b.items():
            if k == "m":
                if v > 0:
                    x = x + 1
        nested = {}
        nested["q"] = {}
        nested["q"]["m"] = x.mean()
        nested["q"]["n"] = 2
        if nested["q"]["m"] > 0:
            x = x + 1
        if nested["q"]["n"] > 1:
            x = x + 1
        g = {}
        for i, name in enumerate(("u", "v")):
            g.setdefault(name, []).append(x[i].mean())
        for name in g:
            for v in g[name]:
                if v > 0:
                    x = x + 1
        s = split_batch({"x": x, "n": 2, "m": x.mean()[None]})
        if s["m"] > 0:
            x = x + 1
        if s["n"] > 1:
            x = x + 1
        out = dict(b, extra=x.max())
        out.update({"z": x.min()})
        out |= {"zz": x.min() * 2}
        if out["extra"] > 0 or out["z"] > 0 or out["zz"] > 0:
            x = x + 1
        merged = {**out, "k": 4}
        if merged["z"] > 0:
            x = x + 1
        if merged["k"] > 3:
            x = x + 1
        m = merged.pop("extra")
        if m > 0:
            x = x + 1
        d = defaultdict(float)
        d["loss"] += x.mean()
        if d["loss"] > 0:
            x = x + 1
        od = Out()
        od["v"] = x.mean()
        od["k"] = 4
        if od.v > 0:
            x = x + 1
        if od["v"] > 0:
            x = x + 1
        if od.k > 3:
            x = x + 1
        return x

    def lists(self, x):
        outs = []
        outs.append(x.mean())
        outs.append(3)
        if outs[0] > 0:
            x = x + 1
        if outs[1] > 0:
            x = x + 1
        info = (x.mean(), 2)
        info += (x.max(),)
        if info[2] > 0:
            x = x + 1
        if info[1] > 1:
            x = x + 1
        a, b = zip(*[(x[i].mean(), i) for i in range(2)])
        if a[0] > 0:
            x = x + 1
        if b[0] == 0:
            x = x + 1
        stack = [(x.mean(), 0)]
        while stack:
            v, depth = stack.pop()
            if depth < 2:
                stack.append((v * 0.5, depth + 1))
            if v > 0:
                x = x + 1
        best = max(((x[i].mean(), i) for i in range(2)), key=lambda p: p[1])
        if best[0] > 0:
            x = x + 1
        q = deque([x.mean()], maxlen=2)
        q.append(x.max())
        if q[0] > 0:
            x = x + 1
        ind = {i: m for i, m in enumerate(x.mean(1))}
        if ind[0] > 0:
            x = x + 1
        l2 = [x.mean()] * 2
        l2[1] = x.max()
        if l2[1] > 0:
            x = x + 1
        l3 = [None] * 2
        l3[0] = x.mean()
        if l3[0] > 0:
            x = x + 1
        return x

    def objects(self, x):
        d = Data(x=x, edge_index=torch.zeros(2, 3, device=x.device).long(), m=x.mean(), size=4)
        d = d.to(x.device)
        if d.m > 0:
            x = x + 1
        if d.size > 3:
            x = x + 1
        d["y"] = x.mean()
        if d["y"] > 0:
            x = x + 1
        d.z = x.max()
        if d.z > 0:
            x = x + 1
        if d.num_nodes > 2:
            x = x + 1
        r = Rays(x.mean(), x.max(), near=x.min()).map(lambda v: v * 2)
        if r.o > 0:
            x = x + 1
        o, dd = r
        if dd > 0:
            x = x + 1
        p = Pair(x.mean(), 2, k=3)
        if p.a > 0:
            x = x + 1
        if p.k > 2:
            x = x + 1
        p2 = p._replace(b=x.max())
        if p2.b > 0:
            x = x + 1
        ns = SimpleNamespace(v=x.mean(), k=2)
        ns.u = x.max()
        if ns.v > 0:
            x = x + 1
        if ns.u > 0:
            x = x + 1
        if ns.k > 1:
            x = x + 1
        for f in fields(r):
            v = getattr(r, f.name)
            if v > 0:
                x = x + 1
        vals = vars(ns)
        if vals["v"] > 0:
            x = x + 1
        return x

    def forward(self, x):
        x = self.aug(x)
        x = self.dicts(x)
        x = self.lists(x)
        return self.objects(x)


def tiny():
    return Model(), [{"x": torch.randn(3, 4)}]
