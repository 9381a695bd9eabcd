"""Latents that read a sequence, ALiBi or relative buckets by option, tied heads; clean."""
import math
from collections import namedtuple
from contextlib import nullcontext
from functools import wraps

import torch
import torch.nn.functional as F
from torch import einsum, nn

LayerIntermediates = namedtuple("Intermediates", ["hiddens", "attn"])


def exists(v):
    return v is not None


def default(val, d):
    return val if exists(val) else d


def cast_tuple(t, n=1):
    return t if isinstance(t, tuple) else (t,) * n


def once(fn):
    called = False

    @wraps(fn)
    def inner(x):
        nonlocal called
        if called:
            return
        called = True
        return fn(x)
    return inner


def groupby_prefix_and_trim(prefix, d):
    inside = {k[len(prefix):]: v for k, v in d.items() if k.startswith(prefix)}
    return inside, {k: v for k, v in d.items() if not k.startswith(prefix)}


class RelativePositionBias(nn.Module):
    def __init__(self, scale, causal=False, num_buckets=8, max_distance=16, heads=2):
        super().__init__()
        self.scale, self.causal, self.num_buckets, self.max_distance = scale, causal, num_buckets, max_distance
        self.relative_attention_bias = nn.Embedding(num_buckets, heads)

    @staticmethod
    def _relative_position_bucket(relative_position, causal=True, num_buckets=32, max_distance=128):
        ret = 0
        n = -relative_position
        if not causal:
            num_buckets //= 2
            ret += (n < 0).long() * num_buckets
            n = torch.abs(n)
        else:
            n = torch.max(n, torch.zeros_like(n))
        max_exact = num_buckets // 2
        is_small = n < max_exact
        val_if_large = max_exact + (torch.log(n.float() / max_exact) / math.log(max_distance / max_exact) * (num_buckets - max_exact)).long()
        val_if_large = torch.min(val_if_large, torch.full_like(val_if_large, num_buckets - 1))
        ret += torch.where(is_small, n, val_if_large)
        return ret

    def forward(self, qk_dots):
        i, j, device = *qk_dots.shape[-2:], qk_dots.device
        q_pos = torch.arange(j - i, j, dtype=torch.long, device=device)
        k_pos = torch.arange(j, dtype=torch.long, device=device)
        bucket = self._relative_position_bucket(k_pos[None, :] - q_pos[:, None], causal=self.causal, num_buckets=self.num_buckets, max_distance=self.max_distance)
        return qk_dots + self.relative_attention_bias(bucket).permute(2, 0, 1)[None] * self.scale


class PreNorm(nn.Module):
    def __init__(self, dim, fn, context_dim=None):
        super().__init__()
        self.fn, self.norm = fn, nn.LayerNorm(dim)
        self.norm_context = nn.LayerNorm(context_dim) if exists(context_dim) else None

    def forward(self, x, **kwargs):
        x = self.norm(x)
        if exists(self.norm_context):
            kwargs.update(context=self.norm_context(kwargs["context"]))
        return self.fn(x, **kwargs)


class Attention(nn.Module):
    def __init__(self, query_dim, context_dim=None, heads=2, dim_head=4, causal=False, rel_pos=False, qk_norm=False):
        super().__init__()
        inner = dim_head * heads
        self.scale, self.heads, self.causal, self.qk_norm = dim_head ** -0.5, heads, causal, qk_norm
        self.to_q = nn.Linear(query_dim, inner, bias=False)
        self.to_kv = nn.Linear(default(context_dim, query_dim), inner * 2, bias=False)
        self.to_out = nn.Linear(inner, query_dim)
        self.rel = RelativePositionBias(scale=dim_head ** 0.5, causal=causal, heads=heads) if rel_pos else None

    def forward(self, x, context=None, mask=None):
        h, device, has_context = self.heads, x.device, exists(context)
        context = default(context, x)
        q, (k, v) = self.to_q(x), self.to_kv(context).chunk(2, dim=-1)
        q, k, v = map(lambda t: t.unflatten(-1, (h, -1)).transpose(1, 2), (q, k, v))
        if self.qk_norm:
            q, k = map(lambda t: F.normalize(t, dim=-1), (q, k))
        sim = einsum("b h i d, b h j d -> b h i j", q, k) * (1 if self.qk_norm else self.scale)
        if exists(self.rel):
            sim = self.rel(sim)
        max_neg = -torch.finfo(sim.dtype).max
        if exists(mask):
            assert mask.ndim == 2 and mask.shape[-1] == k.shape[-2]
            sim = sim.masked_fill(~mask[:, None, None], max_neg)
        if self.causal and not has_context:
            i, j = sim.shape[-2:]
            sim = sim.masked_fill(torch.ones((i, j), dtype=torch.bool, device=device).triu(j - i + 1), max_neg)
        attn = sim.softmax(dim=-1)
        return self.to_out((attn @ v).transpose(1, 2).flatten(2)), LayerIntermediates(sim, attn)


class Perceiver(nn.Module):
    def __init__(self, *, vocab=20, dim=8, latents=4, depth=2, tie=True, autocast=False, **kwargs):
        super().__init__()
        attn_kwargs, rest = groupby_prefix_and_trim("attn_", kwargs)
        assert not rest, f"unknown options {list(rest)}"
        self.token = nn.Embedding(vocab, dim)
        self.latents = nn.Parameter(torch.randn(latents, dim))
        self.cross = PreNorm(dim, Attention(dim, dim), context_dim=dim)
        self.layers = nn.ModuleList([nn.ModuleList([PreNorm(dim, Attention(dim, **attn_kwargs)), nn.Sequential(nn.Linear(dim, dim * 2), nn.GELU(), nn.Linear(dim * 2, dim))]) for _ in range(depth)])
        self.autocast = autocast
        self.to_logits = (lambda t: t @ self.token.weight.t()) if tie else nn.Linear(dim, vocab)

    def forward(self, tokens, mask=None, return_attn=False, mems=None):
        b, n = tokens.shape
        x = self.token(tokens)
        if exists(mems):
            mems = cast_tuple(mems)
            x = torch.cat((*mems, x), dim=1)
        with torch.autocast("cpu") if self.autocast else nullcontext():
            z = self.latents[None].expand(b, -1, -1)
            z = z + self.cross(z, context=x, mask=mask)[0]
            inter = []
            for attn, ff in self.layers:
                out, i = attn(z)
                z = z + out
                z = ff(z) + z
                inter.append(i)
        logits = self.to_logits(z)
        if return_attn:
            return logits, torch.stack([i.attn for i in inter])
        return logits


def tiny():
    ids = torch.randint(0, 20, (2, 5))
    model = Perceiver(attn_rel_pos=True, attn_causal=True).eval()
    return model, [{"tokens": ids, "mask": torch.rand(2, 5) > 0.2, "return_attn": True}, {"tokens": ids, "mems": torch.randn(2, 1, 8)}]
