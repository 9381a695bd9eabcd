# A small GPT with a KV cache. Any device.
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class GPTConfig:
    vocab_size: int = 96
    block_size: int = 128
    n_layer: int = 3
    n_head: int = 4
    n_embd: int = 64


class KVCache:
    def __init__(self, config, batch_size, length):
        shape = (batch_size, config.n_head, length, config.n_embd // config.n_head)
        self.k = [torch.zeros(shape) for _ in range(config.n_layer)]
        self.v = [torch.zeros(shape) for _ in range(config.n_layer)]
        self.pos = torch.zeros((), dtype=torch.int32)

    def update(self, layer, k, v):
        columns = self.pos + torch.arange(k.size(2), device=k.device)
        self.k[layer].index_copy_(2, columns, k)
        self.v[layer].index_copy_(2, columns, v)
        mask = torch.arange(self.k[layer].size(2), device=k.device) <= columns[:, None]
        return self.k[layer], self.v[layer], mask


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x, cache=None, layer=0):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        mask = None
        if cache is not None:
            k, v, mask = cache.update(layer, k, v)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x, cache=None, layer=0):
        x = x + self.attn(self.ln_1(x), cache, layer)
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * config.n_layer) if "c_proj" in name else 1))

    def forward(self, idx, cache=None):
        B, T = idx.size()
        past = cache.pos if cache is not None else 0
        pos = past + torch.arange(T, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for layer, block in enumerate(self.h):
            x = block(x, cache, layer)
        if cache is not None:
            cache.pos = cache.pos + T
        return self.lm_head(self.ln_f(x))


def describe(model):
    """What tpuport.generate needs to know."""
    import tpuport

    def forward(tokens, cache, position):
        cache.pos = position
        return model(tokens, cache)

    config = model.config
    return tpuport.LanguageModel(
        model,
        vocab_size=config.vocab_size,
        max_length=config.block_size,
        forward=forward,
        make_cache=lambda length: KVCache(config, 1, length),
    )
