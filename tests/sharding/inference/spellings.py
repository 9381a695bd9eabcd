"""Blocks of transformers in the spellings of research code: attention, feed-forward layers, modulation.

Shapes: B batch, N sequence, E width, H heads, K key/value heads, D head dimension, F features of the feed-forward.
"""

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, HEAD_DIM, FEATURES = 64, 8, 8, 128


def fold(x):
    """[B, N, H * D] -> [B, H, N, D]."""
    return x.view(*x.shape[:2], -1, HEAD_DIM).transpose(1, 2)


def unfold(x):
    """[B, H, N, D] -> [B, N, H * D]."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def softmax_of(scores):
    return (scores * HEAD_DIM**-0.5).softmax(-1)


class Attention(nn.Module):
    """Separate projections; a spelling is a function of [B, H, N, D] queries, [B, K, N, D] keys and values."""

    def __init__(self, attend, kv_heads=HEADS):
        super().__init__()
        self.attend = attend
        self.q, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = nn.Linear(WIDTH, kv_heads * HEAD_DIM), nn.Linear(WIDTH, kv_heads * HEAD_DIM)

    def forward(self, x):
        return self.o(self.attend(*(fold(layer(x)) for layer in (self.q, self.k, self.v))))


def sdpa(q, k, v):
    return unfold(functional.scaled_dot_product_attention(q, k, v))


def sdpa_causal(q, k, v):
    return unfold(functional.scaled_dot_product_attention(q, k, v, is_causal=True))


def matmul(q, k, v):
    return unfold(softmax_of(q @ k.transpose(-1, -2)) @ v)


def matmul_causal(q, k, v):
    """As nanoGPT without flash attention."""
    mask = torch.tril(torch.ones(q.shape[2], q.shape[2], device=q.device)).bool()
    scores = (q @ k.transpose(-2, -1)) * HEAD_DIM**-0.5
    return unfold(functional.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1) @ v)


def einsum(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    return unfold(torch.einsum("bhij,bhjd->bhid", softmax_of(scores), v))


def einsum_of_sequences(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = softmax_of(torch.einsum("bqhd,bkhd->bhqk", q, k))
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)


def join(x):
    """[B, H, N, D] -> [B * H, N, D]."""
    return x.reshape(-1, *x.shape[2:])


def bmm(q, k, v):
    weights = softmax_of(torch.bmm(join(q), join(k).transpose(1, 2)))
    return unfold(torch.bmm(weights, join(v)).view(q.shape))


def bmm_with_mask(q, k, v):
    """As BART in transformers did: split up to add a mask, and joined again."""
    batch, heads, length, _ = q.shape
    scores = torch.bmm(join(q) * HEAD_DIM**-0.5, join(k).transpose(1, 2))
    mask = torch.full((length, length), float("-inf"), device=q.device).triu(1)
    scores = scores.view(batch, heads, length, length) + mask
    weights = functional.softmax(scores.view(batch * heads, length, length), dim=-1)
    return unfold(torch.bmm(weights, join(v)).view(batch, heads, length, -1))


def baddbmm(q, k, v):
    """As diffusers' and Bloom's processors."""
    scores = torch.empty(q.shape[0] * q.shape[1], q.shape[2], k.shape[2], device=q.device, dtype=q.dtype)
    scores = torch.baddbmm(scores, join(q), join(k).transpose(-1, -2), beta=0, alpha=HEAD_DIM**-0.5)
    return unfold(torch.bmm(scores.softmax(dim=-1), join(v)).unflatten(0, q.shape[:2]))


def bmm_transposed(q, k, v):
    """As the blocks of Stable Diffusion's autoencoder: [B * H, D, N]."""
    q, k, v = (join(x).transpose(1, 2) for x in (q, k, v))
    weights = softmax_of(torch.einsum("bct,bcs->bts", q, k))
    out = torch.einsum("bts,bcs->bct", weights, v)
    return out.reshape(-1, WIDTH, out.shape[-1]).transpose(1, 2)


def heads_first(q, k, v):
    """Joined with the heads first, as the original Transformer-XL and others do."""
    joined = (x.transpose(0, 1).reshape(-1, *x.shape[2:]) for x in (q, k, v))
    q_joined, k_joined, v_joined = joined
    out = softmax_of(q_joined @ k_joined.transpose(1, 2)) @ v_joined
    return unfold(out.view(q.shape[1], q.shape[0], *q.shape[2:]).transpose(0, 1))


def split_and_concatenated(q, k, v):
    """Heads put behind one another on the batch, one by one."""
    q, k, v = (torch.cat(unfold(x).chunk(HEADS, dim=2), dim=0) for x in (q, k, v))
    out = softmax_of(torch.bmm(q, k.transpose(1, 2))) @ v
    return torch.cat(out.chunk(HEADS, dim=0), dim=2)


def stable_softmax(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * HEAD_DIM**-0.5
    scores = scores - scores.amax(dim=-1, keepdim=True).detach()
    weights = scores.exp()
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return unfold(weights.to(v.dtype) @ v)


ATTENTION = {
    function.__name__: function
    for function in (
        sdpa, sdpa_causal, matmul, matmul_causal, einsum, einsum_of_sequences, bmm, bmm_with_mask, baddbmm,
        bmm_transposed, heads_first, stable_softmax,
    )
}  # fmt: skip


def grouped_by_interleaving(q, k, v):
    groups = q.shape[1] // k.shape[1]
    return matmul(q, k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1))


def grouped_by_expanding(q, k, v):
    def repeat(x):
        batch, heads, length, width = x.shape
        x = x[:, :, None].expand(batch, heads, q.shape[1] // heads, length, width)
        return x.reshape(batch, -1, length, width)

    return sdpa(q, repeat(k), repeat(v))


def grouped_by_einsum(q, k, v):
    grouped = q.view(q.shape[0], k.shape[1], -1, *q.shape[2:])
    weights = softmax_of(torch.einsum("bkgid,bkjd->bkgij", grouped, k))
    return unfold(torch.einsum("bkgij,bkjd->bkgid", weights, v).flatten(1, 2))


def grouped_by_sdpa(q, k, v):
    return unfold(functional.scaled_dot_product_attention(q, k, v, enable_gqa=True))


def grouped_by_bmm(q, k, v):
    groups = q.shape[1] // k.shape[1]
    return bmm(q, k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1))


GROUPED = {
    function.__name__: function
    for function in (
        grouped_by_sdpa, grouped_by_interleaving, grouped_by_expanding, grouped_by_einsum, grouped_by_bmm,
    )
}  # fmt: skip


class Fused(nn.Module):
    """Query, key and value in one projection, whose outputs a spelling takes apart to [B, H, N, D]."""

    def __init__(self, take_apart):
        super().__init__()
        self.take_apart = take_apart
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.o(sdpa(*self.take_apart(self.qkv(x))))


def chunked(qkv):
    return map(fold, qkv.chunk(3, dim=-1))


def viewed_by_heads(qkv):
    """As GPT-NeoX: [heads, 3, head_dim]."""
    return qkv.view(*qkv.shape[:2], HEADS, 3, HEAD_DIM).permute(3, 0, 2, 1, 4)


def chunked_by_heads(qkv):
    """As GPT-NeoX: [heads, 3 * head_dim]."""
    return qkv.view(*qkv.shape[:2], HEADS, 3 * HEAD_DIM).transpose(1, 2).chunk(3, dim=-1)


def viewed_by_parts(qkv):
    """As timm: [3, heads, head_dim]."""
    return qkv.view(*qkv.shape[:2], 3, HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)


class EinsumWeights(nn.Module):
    """Weights of three dimensions, as code that was written for JAX has them."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.randn(WIDTH, HEADS, HEAD_DIM) / 8) for _ in range(3))
        self.o = nn.Parameter(torch.randn(HEADS, HEAD_DIM, WIDTH) / 8)

    def forward(self, x):
        q, k, v = (torch.einsum("bne,ehd->bnhd", x, weight) for weight in (self.q, self.k, self.v))
        weights = softmax_of(torch.einsum("bqhd,bkhd->bhqk", q, k))
        return torch.einsum("bqhd,hde->bqe", torch.einsum("bhqk,bkhd->bqhd", weights, v), self.o)


class Multihead(nn.Module):
    """torch's own, with the weights of attention returned, for which it multiplies by hand."""

    def __init__(self, need_weights):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x):
        return self.attention(x, x, x, need_weights=self.need_weights)[0]


class Conv1D(nn.Module):
    """A linear layer with a transposed weight, as GPT-2 has it."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / 8)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        out = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return out.view(*x.shape[:-1], -1)


class FeedForward(nn.Module):
    """Two layers of a class, with an activation between them."""

    def __init__(self, layer=nn.Linear, activation=functional.gelu):
        super().__init__()
        self.up, self.down, self.activation = layer(WIDTH, FEATURES), layer(FEATURES, WIDTH), activation

    def forward(self, x):
        return self.down(self.activation(self.up(x)))


class PointwiseConvolutions(nn.Module):
    """Convolutions of kernel size 1 in place of linear layers, on [B, E, N]."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Conv1d(WIDTH, FEATURES, 1), nn.Conv1d(FEATURES, WIDTH, 1)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x.transpose(1, 2)))).transpose(1, 2)


class Gated(nn.Module):
    """SwiGLU with separate projections, or one whose outputs are halved."""

    def __init__(self, is_fused=False):
        super().__init__()
        self.is_fused = is_fused
        if is_fused:
            self.gate_up = nn.Linear(WIDTH, 2 * FEATURES)
        else:
            self.gate, self.up = nn.Linear(WIDTH, FEATURES), nn.Linear(WIDTH, FEATURES)
        self.down = nn.Linear(FEATURES, WIDTH)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1) if self.is_fused else (self.gate(x), self.up(x))
        return self.down(functional.silu(gate) * up)


class ExpertLoop(nn.Module):
    """A dense mixture of experts in a Python loop, as small repositories write it."""

    def __init__(self, experts=4):
        super().__init__()
        self.router = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(FeedForward() for _ in range(experts))

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        return sum(weights[..., index : index + 1] * expert(x) for index, expert in enumerate(self.experts))


class BatchedExperts(nn.Module):
    """Experts in weights of three dimensions, all computed at once."""

    def __init__(self, experts=4, by_bmm=False):
        super().__init__()
        self.router, self.by_bmm = nn.Linear(WIDTH, experts), by_bmm
        self.up = nn.Parameter(torch.randn(experts, WIDTH, FEATURES) / 8)
        self.down = nn.Parameter(torch.randn(experts, FEATURES, WIDTH) / 8)

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        if self.by_bmm:
            rows = x.reshape(-1, WIDTH).expand(len(self.up), -1, -1)
            out = torch.bmm(functional.gelu(torch.bmm(rows, self.up)), self.down)
            return torch.einsum("xne,nx->ne", out, weights.reshape(-1, len(self.up))).view(x.shape)
        hidden = functional.gelu(torch.einsum("bne,xef->bnxf", x, self.up))
        return torch.einsum("bnxf,xfe,bnx->bne", hidden, self.down, weights)


class Cross(nn.Module):
    """Attention to a context of another width."""

    def __init__(self, attend):
        super().__init__()
        self.attend = attend
        self.q, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = nn.Linear(48, WIDTH), nn.Linear(48, WIDTH)

    def forward(self, x):
        context = x[:, :12, :48]
        return self.o(self.attend(fold(self.q(x)), fold(self.k(context)), fold(self.v(context))))


class Block(nn.Module):
    """Attention and a feed-forward on the residual stream, each after a norm."""

    def __init__(self, attention, feed_forward):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.feed_forward = attention, feed_forward

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class ParallelBlock(Block):
    """Attention and feed-forward of one norm, added together, as GPT-J and PaLM."""

    def forward(self, x):
        normed = self.norm1(x)
        return x + self.attention(normed) + self.feed_forward(normed)


class JoinedOutput(nn.Module):
    """Attention and feed-forward with one output projection, of what both give, one after the other."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.up, self.out = nn.Linear(WIDTH, FEATURES), nn.Linear(WIDTH + FEATURES, WIDTH)

    def forward(self, x):
        attended = sdpa(*(fold(layer(x)) for layer in (self.q, self.k, self.v)))
        return x + self.out(torch.cat([attended, functional.gelu(self.up(x))], dim=-1))


class JoinedBoth(nn.Module):
    """As a single-stream block of Flux: one projection in, of [3, heads, head_dim] and features, and one out."""

    def __init__(self):
        super().__init__()
        self.inward = nn.Linear(WIDTH, 3 * WIDTH + FEATURES)
        self.outward = nn.Linear(WIDTH + FEATURES, WIDTH)

    def forward(self, x):
        qkv, hidden = self.inward(x).split([3 * WIDTH, FEATURES], dim=-1)
        attended = sdpa(*viewed_by_parts(qkv))
        return x + self.outward(torch.cat([attended, functional.gelu(hidden)], dim=-1))
