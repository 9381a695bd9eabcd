"""Two towers and a temperature; nothing here needs a number."""

from collections import OrderedDict
from typing import Tuple, Union

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class LayerNorm(nn.LayerNorm):
    def forward(self, x: torch.Tensor):
        orig_type = x.dtype
        ret = super().forward(x.type(torch.float32))
        return ret.type(orig_type)


class QuickGELU(nn.Module):
    def forward(self, x: torch.Tensor):
        return x * torch.sigmoid(1.702 * x)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, d_model: int, n_head: int, attn_mask: torch.Tensor = None):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_head)
        self.ln_1 = LayerNorm(d_model)
        self.mlp = nn.Sequential(
            OrderedDict(
                [
                    ("c_fc", nn.Linear(d_model, d_model * 4)),
                    ("gelu", QuickGELU()),
                    ("c_proj", nn.Linear(d_model * 4, d_model)),
                ]
            )
        )
        self.ln_2 = LayerNorm(d_model)
        self.attn_mask = attn_mask

    def attention(self, x: torch.Tensor):
        self.attn_mask = (
            self.attn_mask.to(dtype=x.dtype, device=x.device) if self.attn_mask is not None else None
        )
        return self.attn(x, x, x, need_weights=False, attn_mask=self.attn_mask)[0]

    def forward(self, x: torch.Tensor):
        x = x + self.attention(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, attn_mask: torch.Tensor = None):
        super().__init__()
        self.width = width
        self.resblocks = nn.Sequential(
            *[ResidualAttentionBlock(width, heads, attn_mask) for _ in range(layers)]
        )

    def forward(self, x: torch.Tensor):
        return self.resblocks(x)


class VisionTransformer(nn.Module):
    def __init__(
        self, input_resolution: int, patch_size: int, width: int, layers: int, heads: int, output_dim: int
    ):
        super().__init__()
        self.input_resolution = input_resolution
        self.conv1 = nn.Conv2d(3, width, kernel_size=patch_size, stride=patch_size, bias=False)
        scale = width**-0.5
        self.class_embedding = nn.Parameter(scale * torch.randn(width))
        self.positional_embedding = nn.Parameter(
            scale * torch.randn((input_resolution // patch_size) ** 2 + 1, width)
        )
        self.ln_pre, self.ln_post = LayerNorm(width), LayerNorm(width)
        self.transformer = Transformer(width, layers, heads)
        self.proj = nn.Parameter(scale * torch.randn(width, output_dim))

    def interpolate_pos(self, x, h, w):
        n = x.shape[1] - 1
        N = self.positional_embedding.shape[0] - 1
        if n == N and h == w:
            return self.positional_embedding
        cls, grid = self.positional_embedding[:1], self.positional_embedding[1:]
        side = int(N**0.5)
        assert side * side == N
        grid = F.interpolate(
            grid.reshape(1, side, side, -1).permute(0, 3, 1, 2), size=(int(h), int(w)), mode="bicubic"
        )
        return torch.cat([cls, grid.permute(0, 2, 3, 1).reshape(h * w, -1)])

    def forward(self, x: torch.Tensor):
        x = self.conv1(x)
        h, w = x.shape[-2:]
        x = x.reshape(x.shape[0], x.shape[1], -1).permute(0, 2, 1)
        cls = self.class_embedding.to(x.dtype) + torch.zeros(
            x.shape[0], 1, x.shape[-1], dtype=x.dtype, device=x.device
        )
        x = torch.cat([cls, x], dim=1)
        x = self.ln_pre(x + self.interpolate_pos(x, h, w).to(x.dtype)).permute(1, 0, 2)
        x = self.ln_post(self.transformer(x).permute(1, 0, 2)[:, 0, :])
        if self.proj is not None:
            x = x @ self.proj
        return x


class DualEncoder(nn.Module):
    def __init__(
        self,
        embed_dim=8,
        image_resolution=8,
        vision_layers: Union[Tuple[int, int], int] = 1,
        context_length=6,
        vocab_size=20,
        width=16,
    ):
        super().__init__()
        self.context_length = context_length
        if isinstance(vision_layers, (tuple, list)):
            raise NotImplementedError
        self.visual = VisionTransformer(image_resolution, 4, width, vision_layers, 2, embed_dim)
        self.transformer = Transformer(width, 1, 2, attn_mask=self.build_attention_mask())
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.positional_embedding = nn.Parameter(torch.empty(context_length, width).normal_())
        self.ln_final = LayerNorm(width)
        self.text_projection = nn.Parameter(torch.randn(width, embed_dim))
        self.logit_scale = nn.Parameter(torch.ones([]) * np.log(1 / 0.07))

    def build_attention_mask(self):
        mask = torch.empty(self.context_length, self.context_length)
        mask.fill_(float("-inf"))
        mask.triu_(1)
        return mask

    @property
    def dtype(self):
        return self.visual.conv1.weight.dtype

    def encode_image(self, image):
        return self.visual(image.type(self.dtype))

    def encode_text(self, text):
        x = self.token_embedding(text).type(self.dtype)
        x = x + self.positional_embedding.type(self.dtype)
        x = self.transformer(x.permute(1, 0, 2)).permute(1, 0, 2)
        x = self.ln_final(x).type(self.dtype)
        return x[torch.arange(x.shape[0]), text.argmax(dim=-1)] @ self.text_projection

    def forward(self, image, text, return_loss=False):
        image_features = self.encode_image(image) if image is not None else None
        text_features = self.encode_text(text) if text is not None else None
        if image is None:
            return text_features
        elif text is None:
            return image_features
        image_features = image_features / image_features.norm(dim=1, keepdim=True)
        text_features = text_features / text_features.norm(dim=1, keepdim=True)
        logits_per_image = self.logit_scale.exp() * image_features @ text_features.t()
        labels = torch.arange(len(logits_per_image), device=logits_per_image.device)
        loss = (F.cross_entropy(logits_per_image, labels) + F.cross_entropy(logits_per_image.t(), labels)) / 2
        return (logits_per_image, loss) if return_loss else logits_per_image


def tiny():
    image, text = torch.randn(2, 3, 8, 8), torch.randint(0, 20, (2, 6))
    calls = [{"image": image, "text": text, "return_loss": True}, {"image": None, "text": text}]
    return DualEncoder().eval(), [*calls, {"image": torch.randn(2, 3, 12, 8), "text": None}]
