# A small GPT with a KV cache and a sampler. One GPU.
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

try:
    from flash_attn import flash_attn_func

    HAS_FLASH = True
except ImportError:
    HAS_FLASH = False


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
        self.k = [torch.zeros(shape).cuda() for _ in range(config.n_layer)]
        self.v = [torch.zeros(shape).cuda() for _ in range(config.n_layer)]
        self.pos = torch.zeros(1, dtype=torch.long).cuda()

    def update(self, layer, k, v):
        start = self.pos.item()
        end = start + k.size(2)
        self.k[layer][:, :, start:end] = k
        self.v[layer][:, :, start:end] = v
        return self.k[layer][:, :, :end], self.v[layer][:, :, :end]


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
        assert q.device.type == "cuda", "this model needs a GPU"
        if cache is not None:
            k, v = cache.update(layer, k, v)
        if HAS_FLASH:
            y = flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=True)
            y = y.transpose(1, 2)
        else:
            # the first call of a cache has the prompt, and later ones have one token
            y = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1)
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
        past = cache.pos.item() if cache is not None else 0
        pos = torch.arange(past, past + T, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for layer, block in enumerate(self.h):
            x = block(x, cache, layer)
        if cache is not None:
            cache.pos += T
        return self.lm_head(self.ln_f(x))

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None, eos=None):
        cache = KVCache(self.config, idx.size(0), idx.size(1) + max_new_tokens)
        tokens = idx
        for _ in range(max_new_tokens):
            logits = self(tokens, cache)[:, -1] / temperature
            if top_k is not None:
                v, _ = torch.topk(logits, top_k)
                logits[logits < v[:, [-1]]] = -float("inf")
            tokens = torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)
            torch.cuda.synchronize()
            idx = torch.cat((idx, tokens), dim=1)
            if eos is not None and tokens.item() == eos:
                break
        return idx


if __name__ == "__main__":
    model = GPT(GPTConfig()).cuda()
    prompt = torch.zeros(1, 1, dtype=torch.long).cuda()
    print(model.generate(prompt, 100, top_k=20).tolist())
