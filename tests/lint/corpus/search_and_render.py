"""geometry classes, trees, chunking, sampling"""
import functools, itertools, math, operator
from contextlib import contextmanager
from typing import Any, Callable, Dict, Generic, Iterator, List, Optional, Tuple, TypeVar
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def tree_map(fn, tree, leaf_type=torch.Tensor):
    if isinstance(tree, dict):
        return {k: tree_map(fn, v, leaf_type) for k, v in tree.items()}
    elif isinstance(tree, list):
        return [tree_map(fn, v, leaf_type) for v in tree]
    elif isinstance(tree, tuple):
        return tuple(tree_map(fn, v, leaf_type) for v in tree)
    elif isinstance(tree, leaf_type):
        return fn(tree)
    raise ValueError(tree)


class Rot:
    def __init__(self, m=None, q=None):
        if m is None and q is None:
            raise ValueError
        self._m, self._q = m, q

    @staticmethod
    def identity(shape, device=None):
        return Rot(m=torch.eye(3, device=device).expand(*shape, 3, 3))

    def get(self):
        return self._m if self._m is not None else self._q

    def __matmul__(self, o):
        return Rot(m=self.get() @ o.get())

    def __getitem__(self, i):
        return Rot(m=self._m[i])

    @property
    def trace(self):
        return self.get().diagonal(dim1=-2, dim2=-1).sum(-1)

    def map(self, fn):
        return Rot(m=fn(self._m))


class Rigid:
    def __init__(self, rots, trans):
        self.rots, self.trans = rots, trans

    def compose(self, o):
        return Rigid(self.rots @ o.rots, self.trans + o.trans)

    def __mul__(self, s):
        return Rigid(self.rots, self.trans * s)

    @property
    def err(self):
        return self.trans.norm()


def chunk_apply(fn, inputs: Dict[str, Any], chunk: int):
    out = []
    n = next(iter(inputs.values())).shape[0]
    for i in range(0, n, chunk):
        part = {k: v[i : i + chunk] for k, v in inputs.items()}
        out.append(fn(**part))
    if isinstance(out[0], dict):
        return {k: torch.cat([o[k] for o in out]) for k in out[0]}
    return torch.cat(out)


def batchify(fn, chunk):
    if chunk is None:
        return fn

    def ret(inputs):
        return torch.cat([fn(inputs[i : i + chunk]) for i in range(0, inputs.shape[0], chunk)], 0)
    return ret


class Filter:
    def __init__(self, kind, value):
        self.kind, self.value = kind, value

    def __call__(self, ids, scores):
        raise NotImplementedError


class TopP(Filter):
    def __call__(self, ids, scores):
        s, i = scores.sort(-1, descending=True)
        keep = s.softmax(-1).cumsum(-1) <= self.value
        last = keep.sum()
        if last > 1:
            scores = scores.masked_fill(scores < s[..., :1], -1e9)
        return scores


class Rep(Filter):
    def __call__(self, ids, scores):
        score = scores.gather(1, ids)
        m = score.min()
        if m < 0:
            score = score * self.value
        return scores.scatter(1, ids, score)


class FilterList(list):
    def __call__(self, ids, scores, **kw):
        for p in self:
            scores = p(ids, scores)
        return scores


class Stop:
    def __init__(self, n, eos):
        self.n, self.eos = n, eos

    def __call__(self, ids):
        done = (ids[:, -1] == self.eos).all()
        return done or ids.shape[1] >= self.n


class Sched:
    def __init__(self, steps=4):
        self.betas = torch.linspace(0.1, 0.4, steps)
        self.alphas = 1 - self.betas
        self.sigmas = self.alphas.sqrt()
        self.timesteps = None
        self.steps = steps
        self.order = []

    def set(self, n, device):
        self.timesteps = torch.linspace(0, self.steps - 1, n).round().long().to(device)
        self.n = n

    def step(self, eps, t, x):
        s = self.sigmas.to(x.device)[t]
        x0 = x - s * eps
        self.order.append(x0)
        if len(self.order) > 2:
            self.order.pop(0)
        if s > 0.5:
            x0 = x0 * 0.5
        prev = self.order[-1] if len(self.order) < 2 else (self.order[-1] + self.order[-2]) / 2
        return prev


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.lm = nn.Linear(4, 6)
        self.emb = nn.Embedding(6, 4)
        self.sched = Sched()

    def geometry(self, x):
        r = Rigid(Rot(m=x[:3, :3]), x[0])
        for i in range(2):
            r = r.compose(Rigid(Rot.identity((), x.device), x[1])) * 0.5
        if r.err > 0:
            x = x + 1
        if r.rots.trace > 0:
            x = x + 1
        t = tree_map(lambda v: v.mean(), {"a": x, "b": [x, x * 2], "c": (x,)})
        if t["a"] > 0:
            x = x + 1
        if t["b"][1] > 0:
            x = x + 1
        return x

    def render(self, x, chunk=2):
        def field(x, y):
            return {"rgb": self.fc(x), "w": (x * y).sum(-1)}
        out = chunk_apply(field, {"x": x, "y": x * 2}, chunk)
        hit = out["w"] > 0
        rgb = out["rgb"][hit]
        tot = batchify(self.fc, chunk)(x).mean()
        if tot > 0:
            x = x + 1
        n = int(hit.sum())
        return x + rgb.sum() + n

    def generate(self, ids, n=5, eos=2, **kw):
        procs = FilterList([TopP("p", 0.9)])
        procs.append(Rep("r", 1.2))
        stops = [Stop(n, eos)]
        cache = None
        while True:
            h, cache = self.embed(ids, cache)
            logits = procs(ids, self.lm(h[:, -1]))
            nxt = logits.argmax(-1, keepdim=True)
            ids = torch.cat([ids, nxt], 1)
            if any(s(ids) for s in stops):
                break
        for tok in ids[0].tolist():
            if tok == eos:
                break
        return ids

    def embed(self, ids, cache=None):
        x = self.emb(ids)
        if cache is not None:
            k = torch.cat([cache["k"], x[:, -1:]], 1)
            cache = {"k": k, "len": cache["len"] + 1, "m": k.mean()}
            if cache["m"] > 0:
                x = x + 1
        else:
            cache = {"k": x, "len": x.shape[1], "m": x.mean()}
        if cache["len"] > 3:
            x = x * 0.9
        return x, cache

    def diffuse(self, x):
        self.sched.set(3, x.device)
        for i, t in enumerate(self.sched.timesteps):
            eps = self.fc(x)
            x = self.sched.step(eps, t, x)
            if i == self.sched.n - 1 and x.isnan().any():
                break
        arr = np.linspace(0, 1, 4)
        w = torch.from_numpy(arr).float()
        if w.sum() > 1:
            x = x + w.to(x.device)
        lens = [int(v) for v in torch.tensor([1, 2])]
        if lens[0] > 0:
            x = x + 1
        return x

    def forward(self, x, ids):
        x = self.diffuse(self.render(self.geometry(x)))
        return x, self.generate(ids)


def tiny():
    return Net(), [{"x": torch.randn(4, 4), "ids": torch.tensor([[1, 3]])}]
