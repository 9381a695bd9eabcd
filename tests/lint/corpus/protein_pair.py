"""Pair and sequence tracks, recycling, chunked attention; clean."""
from dataclasses import dataclass
from functools import lru_cache, partialmethod
from typing import Optional

import torch
from torch import nn


def add(m1, m2, inplace=False):
    return m1.add_(m2) if inplace else m1 + m2


def chunk_layer(layer, inputs, chunk_size, no_batch_dims=1):
    if not len(inputs) > 0:
        raise ValueError("Must provide at least one input")
    flat = {k: v.reshape(-1, *v.shape[no_batch_dims:]) for k, v in inputs.items()}
    n = next(iter(flat.values())).shape[0]
    no_chunks = n // chunk_size + (n % chunk_size != 0)
    out = None
    for i in range(no_chunks):
        part = layer(**{k: v[i * chunk_size: (i + 1) * chunk_size] for k, v in flat.items()})
        if out is None:
            out = part.new_zeros((n,) + part.shape[1:])
        out[i * chunk_size: (i + 1) * chunk_size] = part
    return out.view(*next(iter(inputs.values())).shape[:no_batch_dims], *out.shape[1:])


@dataclass
class Output:
    single: torch.Tensor
    pair: torch.Tensor
    plddt: Optional[torch.Tensor] = None

    def to_tuple(self):
        return tuple(v for v in (self.single, self.pair, self.plddt) if v is not None)


class TriangleMultiplication(nn.Module):
    def __init__(self, dim, outgoing=True):
        super().__init__()
        self.outgoing = outgoing
        self.ab, self.gate, self.out, self.norm = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim), nn.Linear(dim, dim), nn.LayerNorm(dim)

    def forward(self, z, mask=None):
        if mask is None:
            mask = z.new_ones(z.shape[:-1])
        z = self.norm(z)
        a, b = (self.ab(z) * mask[..., None]).chunk(2, -1)
        x = torch.einsum("bikc,bjkc->bijc", a, b) if self.outgoing else torch.einsum("bkic,bkjc->bijc", a, b)
        return self.out(x) * self.gate(z).sigmoid()


class RowAttention(nn.Module):
    def __init__(self, dim, heads=2, inf=1e9):
        super().__init__()
        self.heads, self.inf, self.qkv, self.o = heads, inf, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def _attend(self, x, mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        logits = torch.einsum("bihd,bjhd->bhij", q, k) + (self.inf * (mask - 1))[:, None, None, :]
        return self.o(torch.einsum("bhij,bjhd->bihd", logits.softmax(-1), v).flatten(-2))

    def forward(self, z, mask, chunk_size=None):
        if chunk_size is not None:
            return chunk_layer(self._attend, {"x": z, "mask": mask}, chunk_size, no_batch_dims=len(z.shape[:-2]))
        return self._attend(z.flatten(0, 1), mask.flatten(0, 1)).view_as(z)


class PairBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mul_out, self.mul_in = TriangleMultiplication(dim), TriangleMultiplication(dim, outgoing=False)
        self.row = RowAttention(dim)

    def _step(self, z, mask, which):
        return add(z, getattr(self, f"mul_{which}")(z, mask))

    step_out = partialmethod(_step, which="out")

    def forward(self, z, mask, chunk_size=None):
        z = self.step_out(z, mask)
        z = self._step(z, mask, which="in")
        return add(z, self.row(z, mask, chunk_size), inplace=not (self.training or torch.is_grad_enabled()))


@lru_cache
def offsets(n, clip):
    return [min(max(i, -clip), clip) + clip for i in range(-n, n + 1)]


class PairFormer(nn.Module):
    def __init__(self, dim=8, blocks=2, recycles=2, clip=4, vocab=6):
        super().__init__()
        self.emb, self.left, self.right = nn.Embedding(vocab, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.rel, self.clip = nn.Embedding(2 * clip + 1, dim), clip
        self.blocks = nn.ModuleList(PairBlock(dim) for _ in range(blocks))
        self.recycles, self.norm, self.head = recycles, nn.LayerNorm(dim), nn.Linear(dim, 4)

    def forward(self, aatype, residue_index=None, seq_mask=None, chunk_size=None):
        b, n = aatype.shape
        if residue_index is None:
            residue_index = torch.arange(n, device=aatype.device).expand_as(aatype)
        seq_mask = torch.ones_like(aatype, dtype=torch.float) if seq_mask is None else seq_mask.float()
        pair_mask = seq_mask[:, :, None] * seq_mask[:, None]
        table = torch.tensor(offsets(n, self.clip), device=aatype.device)
        rel = table[residue_index[:, :, None] - residue_index[:, None] + n]
        s = self.emb(aatype)
        prev = s.new_zeros(b, n, n, s.shape[-1])
        z = None
        for cycle in range(self.recycles):
            z = self.left(s)[:, :, None] + self.right(s)[:, None] + self.rel(rel) + self.norm(prev)
            for block in self.blocks:
                z = block(z, pair_mask, chunk_size=chunk_size)
            prev = z.detach() if cycle < self.recycles - 1 else z
        s = s + (z * pair_mask[..., None]).mean(2)
        return Output(s, z, self.head(s).softmax(-1)).to_tuple()


def tiny():
    ids = torch.randint(0, 6, (2, 5))
    return PairFormer().eval(), [{"aatype": ids, "seq_mask": torch.ones(2, 5, dtype=torch.bool)}, {"aatype": ids, "chunk_size": 2}]
