"""A video diffusion transformer: rotary tables over three axes built in forward, lists of latents to patchify."""

import math

import torch
import torch.nn as nn


def sinusoidal_embedding_1d(dim, position):
    assert dim % 2 == 0
    half = dim // 2
    position = position.type(torch.float64)
    sinusoid = torch.outer(position, torch.pow(10000, -torch.arange(half).to(position).div(half)))
    return torch.cat([torch.cos(sinusoid), torch.sin(sinusoid)], dim=1)


def rope_params(max_seq_len, dim, theta=10000):
    assert dim % 2 == 0
    freqs = torch.outer(
        torch.arange(max_seq_len), 1.0 / torch.pow(theta, torch.arange(0, dim, 2).to(torch.float64).div(dim))
    )
    return torch.polar(torch.ones_like(freqs), freqs)


def rope_apply(x, grid_sizes, freqs):
    n, c = x.size(2), x.size(3) // 2
    freqs = freqs.split([c - 2 * (c // 3), c // 3, c // 3], dim=1)
    output = []
    for i, (f, h, w) in enumerate(grid_sizes.tolist()):
        seq_len = f * h * w
        x_i = torch.view_as_complex(x[i, :seq_len].to(torch.float64).reshape(seq_len, n, -1, 2))
        freqs_i = torch.cat(
            [
                freqs[0][:f].view(f, 1, 1, -1).expand(f, h, w, -1),
                freqs[1][:h].view(1, h, 1, -1).expand(f, h, w, -1),
                freqs[2][:w].view(1, 1, w, -1).expand(f, h, w, -1),
            ],
            dim=-1,
        ).reshape(seq_len, 1, -1)
        x_i = torch.view_as_real(x_i * freqs_i).flatten(2)
        x_i = torch.cat([x_i, x[i, seq_len:]])
        output.append(x_i)
    return torch.stack(output).float()


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self._norm(x.float()).type_as(x) * self.weight


class SelfAttention(nn.Module):
    def __init__(self, dim, num_heads, qk_norm=True):
        assert dim % num_heads == 0
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm_q = RMSNorm(dim) if qk_norm else nn.Identity()
        self.norm_k = RMSNorm(dim) if qk_norm else nn.Identity()

    def forward(self, x, seq_lens, grid_sizes, freqs):
        b, s, n, d = *x.shape[:2], self.num_heads, self.head_dim

        def qkv_fn(x):
            q = self.norm_q(self.q(x)).view(b, s, n, d)
            k = self.norm_k(self.k(x)).view(b, s, n, d)
            v = self.v(x).view(b, s, n, d)
            return q, k, v

        q, k, v = qkv_fn(x)
        q, k = rope_apply(q, grid_sizes, freqs), rope_apply(k, grid_sizes, freqs)
        mask = torch.arange(s, device=x.device)[None] < seq_lens[:, None]
        out = nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask[:, None, None]
        )
        return self.o(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, dim, num_heads, eps=1e-6):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps, elementwise_affine=False)
        self.attn = SelfAttention(dim, num_heads)
        self.ffn = nn.Sequential(
            nn.Linear(dim, dim * 2), nn.GELU(approximate="tanh"), nn.Linear(dim * 2, dim)
        )
        self.modulation = nn.Parameter(torch.randn(1, 6, dim) / dim**0.5)

    def forward(self, x, e, seq_lens, grid_sizes, freqs):
        assert e.dtype == torch.float32
        e = (self.modulation + e).chunk(6, dim=1)
        y = self.attn(self.norm1(x).float() * (1 + e[1]) + e[0], seq_lens, grid_sizes, freqs)
        x = x + y * e[2]
        return x + self.ffn(self.norm1(x).float() * (1 + e[4]) + e[3]) * e[5]


class VideoDiT(nn.Module):
    def __init__(
        self, patch_size=(1, 2, 2), in_dim=4, dim=24, num_heads=2, num_layers=2, freq_dim=8, model_type="t2v"
    ):
        super().__init__()
        assert model_type in ["t2v", "i2v"]
        self.model_type = model_type
        self.patch_size, self.dim, self.freq_dim, self.out_dim = patch_size, dim, freq_dim, in_dim
        self.patch_embedding = nn.Conv3d(in_dim, dim, kernel_size=patch_size, stride=patch_size)
        self.time_embedding = nn.Sequential(nn.Linear(freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim * 6))
        self.blocks = nn.ModuleList([Block(dim, num_heads) for _ in range(num_layers)])
        self.head = nn.Linear(dim, math.prod(patch_size) * in_dim)
        d = dim // num_heads
        self.freqs = torch.cat(
            [rope_params(32, d - 4 * (d // 6)), rope_params(32, 2 * (d // 6)), rope_params(32, 2 * (d // 6))],
            dim=1,
        )

    def forward(self, x, t, seq_len, y=None):
        if self.model_type == "i2v":
            assert y is not None
        device = self.patch_embedding.weight.device
        if self.freqs.device != device:
            self.freqs = self.freqs.to(device)
        if y is not None:
            x = [torch.cat([u, v], dim=0) for u, v in zip(x, y)]
        x = [self.patch_embedding(u.unsqueeze(0)) for u in x]
        grid_sizes = torch.stack([torch.tensor(u.shape[2:], dtype=torch.long) for u in x])
        x = [u.flatten(2).transpose(1, 2) for u in x]
        seq_lens = torch.tensor([u.size(1) for u in x], dtype=torch.long)
        assert seq_lens.max() <= seq_len
        x = torch.cat([torch.cat([u, u.new_zeros(1, seq_len - u.size(1), u.size(2))], dim=1) for u in x])
        e = self.time_embedding(sinusoidal_embedding_1d(self.freq_dim, t).float())
        e0 = e.unflatten(1, (6, self.dim))
        kwargs = dict(e=e0, seq_lens=seq_lens, grid_sizes=grid_sizes, freqs=self.freqs)
        for block in self.blocks:
            x = block(x, **kwargs)
        return [u.float() for u in self.unpatchify(self.head(x), grid_sizes)]

    def unpatchify(self, x, grid_sizes):
        c = self.out_dim
        out = []
        for u, v in zip(x, grid_sizes.tolist()):
            u = u[: math.prod(v)].view(*v, *self.patch_size, c)
            u = torch.einsum("fhwpqrc->cfphqwr", u)
            u = u.reshape(c, *[i * j for i, j in zip(v, self.patch_size)])
            out.append(u)
        return out


def tiny():
    x = [torch.randn(4, 2, 4, 4), torch.randn(4, 1, 4, 4)]
    return VideoDiT().eval(), [{"x": x, "t": torch.tensor([3.0, 5.0]), "seq_len": 10}]
