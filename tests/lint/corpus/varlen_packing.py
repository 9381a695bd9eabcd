"""Attention over packed sequences: padding is taken out before the blocks and put back after them."""

import torch
import torch.nn.functional as F
from torch import nn


class IndexFirstAxis(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, indices):
        ctx.save_for_backward(indices)
        assert input.ndim >= 2
        ctx.first_axis_dim, other_shape = input.shape[0], input.shape[1:]
        second_dim = other_shape.numel()
        return torch.gather(input.flatten(1), 0, indices[:, None].expand(-1, second_dim)).reshape(-1, *other_shape)

    @staticmethod
    def backward(ctx, grad_output):
        (indices,) = ctx.saved_tensors
        other_shape = grad_output.shape[1:]
        grad_output = grad_output.flatten(1)
        grad_input = torch.zeros([ctx.first_axis_dim, grad_output.shape[1]], device=grad_output.device)
        grad_input.scatter_(0, indices[:, None].expand(-1, grad_output.shape[1]), grad_output)
        return grad_input.reshape(ctx.first_axis_dim, *other_shape), None


index_first_axis = IndexFirstAxis.apply


def unpad_input(hidden_states, attention_mask):
    seqlens_in_batch = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(attention_mask.flatten(), as_tuple=False).flatten()
    max_seqlen_in_batch = seqlens_in_batch.max().item()
    cu_seqlens = F.pad(torch.cumsum(seqlens_in_batch, dim=0, dtype=torch.int32), (1, 0))
    return (
        index_first_axis(hidden_states.flatten(0, 1), indices),
        indices,
        cu_seqlens,
        max_seqlen_in_batch,
    )


def pad_input(hidden_states, indices, batch, seqlen):
    dim = hidden_states.shape[1:]
    output = torch.zeros((batch * seqlen), *dim, device=hidden_states.device, dtype=hidden_states.dtype)
    output[indices] = hidden_states
    return output.view(batch, seqlen, *dim)


def varlen_attention(q, k, v, cu_seqlens, max_seqlen, causal=False):
    out = torch.empty_like(q)
    bounds = cu_seqlens.tolist()
    for start, end in zip(bounds[:-1], bounds[1:]):
        assert end - start <= max_seqlen
        qi, ki, vi = (t[start:end].transpose(0, 1) for t in (q, k, v))
        out[start:end] = F.scaled_dot_product_attention(qi, ki, vi, is_causal=causal).transpose(0, 1)
    return out


def dense_attention(qkv, key_padding_mask=None, causal=False):
    batch_size, seqlen = qkv.shape[0], qkv.shape[1]
    q, k, v = qkv.unbind(dim=2)
    scores = torch.einsum("bthd,bshd->bhts", q, k * q.shape[-1] ** -0.5)
    if key_padding_mask is not None:
        padding_mask = torch.full((batch_size, seqlen), -10000.0, dtype=scores.dtype, device=scores.device)
        padding_mask.masked_fill_(key_padding_mask, 0.0)
        scores = scores + padding_mask[:, None, None]
    if causal:
        causal_mask = torch.triu(torch.full((seqlen, seqlen), -10000.0, device=scores.device), 1)
        scores = scores + causal_mask.to(dtype=scores.dtype)
    return torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v)


class MHA(nn.Module):
    def __init__(self, dim, heads, causal=False, packed=True):
        super().__init__()
        self.Wqkv, self.out_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.heads, self.causal, self.packed = heads, causal, packed

    def forward(self, x, cu_seqlens=None, max_seqlen=None, key_padding_mask=None):
        if cu_seqlens is not None:
            assert max_seqlen is not None and key_padding_mask is None
            assert self.packed
        qkv = self.Wqkv(x).unflatten(-1, (3, self.heads, -1))
        if cu_seqlens is not None:
            out = varlen_attention(*qkv.unbind(-3), cu_seqlens, max_seqlen, causal=self.causal)
        else:
            out = dense_attention(qkv, key_padding_mask, self.causal)
        return self.out_proj(out.flatten(-2))


class Encoder(nn.Module):
    def __init__(self, vocab=20, dim=16, heads=2, n_layer=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.mixers = nn.ModuleList([MHA(dim, heads) for _ in range(n_layer)])
        self.dense = MHA(dim, heads, packed=False)

    def forward(self, input_ids, key_padding_mask=None, subset_mask=None):
        x = self.emb(input_ids)
        if key_padding_mask is None:
            for mixer in self.mixers:
                x = x + mixer(x)
        else:
            batch, seqlen = x.shape[:2]
            x, indices, cu_seqlens, max_seqlen = unpad_input(x, key_padding_mask)
            for mixer in self.mixers:
                x = x + mixer(x, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen)
            x = pad_input(x, indices, batch, seqlen)
        x = x + self.dense(x, key_padding_mask=key_padding_mask)
        if subset_mask is not None:
            x = x[subset_mask]
        return x


def tiny():
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)
    ids = torch.randint(1, 20, (2, 4))
    return Encoder().eval(), [
        {"input_ids": ids},
        {"input_ids": ids, "key_padding_mask": mask, "subset_mask": ~mask},
    ]
