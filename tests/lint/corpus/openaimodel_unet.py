"""A U-Net in the old improved-diffusion manner: modules that take extra inputs, checkpoint by a flag."""

from abc import abstractmethod
import math

import torch as th
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint as th_checkpoint


def exists(val):
    return val is not None


def default(val, d):
    if exists(val):
        return val
    return d() if callable(d) else d


def conv_nd(dims, *args, **kwargs):
    if dims == 1:
        return nn.Conv1d(*args, **kwargs)
    elif dims == 2:
        return nn.Conv2d(*args, **kwargs)
    raise ValueError(f"unsupported dimensions: {dims}")


def zero_module(module):
    for p in module.parameters():
        p.detach().zero_()
    return module


def checkpoint(func, inputs, params, flag):
    if flag:
        return th_checkpoint(func, *inputs, use_reentrant=False)
    return func(*inputs)


def timestep_embedding(timesteps, dim, max_period=10000, repeat_only=False):
    if not repeat_only:
        half = dim // 2
        freqs = th.exp(-math.log(max_period) * th.arange(start=0, end=half, dtype=th.float32) / half).to(
            device=timesteps.device
        )
        args = timesteps[:, None].float() * freqs[None]
        embedding = th.cat([th.cos(args), th.sin(args)], dim=-1)
        if dim % 2:
            embedding = th.cat([embedding, th.zeros_like(embedding[:, :1])], dim=-1)
    else:
        embedding = timesteps[:, None].repeat(1, dim)
    return embedding


class TimestepBlock(nn.Module):
    @abstractmethod
    def forward(self, x, emb):
        """Apply the module to `x` given `emb`."""


class TimestepEmbedSequential(nn.Sequential, TimestepBlock):
    def forward(self, x, emb, context=None):
        for layer in self:
            if isinstance(layer, TimestepBlock):
                x = layer(x, emb)
            elif isinstance(layer, CrossAttention):
                x = layer(x, context)
            else:
                x = layer(x)
        return x


class Upsample(nn.Module):
    def __init__(self, channels, use_conv, dims=2):
        super().__init__()
        self.channels, self.use_conv, self.dims = channels, use_conv, dims
        if use_conv:
            self.conv = conv_nd(dims, channels, channels, 3, padding=1)

    def forward(self, x):
        assert x.shape[1] == self.channels
        if self.dims == 3:
            x = F.interpolate(x, (x.shape[2], x.shape[3] * 2, x.shape[4] * 2), mode="nearest")
        else:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
        return self.conv(x) if self.use_conv else x


class ResBlock(TimestepBlock):
    def __init__(
        self, channels, emb_channels, out_channels=None, use_scale_shift_norm=False, use_checkpoint=False
    ):
        super().__init__()
        self.out_channels = out_channels or channels
        self.use_checkpoint = use_checkpoint
        self.use_scale_shift_norm = use_scale_shift_norm
        self.in_layers = nn.Sequential(
            nn.GroupNorm(2, channels), nn.SiLU(), conv_nd(2, channels, self.out_channels, 3, padding=1)
        )
        self.emb_layers = nn.Sequential(
            nn.SiLU(), nn.Linear(emb_channels, (2 if use_scale_shift_norm else 1) * self.out_channels)
        )
        self.out_layers = nn.Sequential(
            nn.GroupNorm(2, self.out_channels),
            nn.SiLU(),
            zero_module(conv_nd(2, self.out_channels, self.out_channels, 3, padding=1)),
        )
        self.skip = (
            nn.Identity() if self.out_channels == channels else conv_nd(2, channels, self.out_channels, 1)
        )

    def forward(self, x, emb):
        return checkpoint(self._forward, (x, emb), self.parameters(), self.use_checkpoint)

    def _forward(self, x, emb):
        h = self.in_layers(x)
        emb_out = self.emb_layers(emb).type(h.dtype)
        while len(emb_out.shape) < len(h.shape):
            emb_out = emb_out[..., None]
        if self.use_scale_shift_norm:
            out_norm, out_rest = self.out_layers[0], self.out_layers[1:]
            scale, shift = th.chunk(emb_out, 2, dim=1)
            h = out_norm(h) * (1 + scale) + shift
            h = out_rest(h)
        else:
            h = self.out_layers(h + emb_out)
        return self.skip(x) + h


class CrossAttention(nn.Module):
    def __init__(self, query_dim, context_dim=None, heads=2):
        super().__init__()
        context_dim = default(context_dim, query_dim)
        self.heads = heads
        self.to_q = nn.Linear(query_dim, query_dim, bias=False)
        self.to_kv = nn.Linear(context_dim, 2 * query_dim, bias=False)

    def forward(self, x, context=None, mask=None):
        b, c, *spatial = x.shape
        tokens = x.reshape(b, c, -1).permute(0, 2, 1)
        context = default(context, tokens)
        q = self.to_q(tokens)
        k, v = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = map(lambda t: t.reshape(b, -1, self.heads, c // self.heads).transpose(1, 2), (q, k, v))
        sim = q @ k.transpose(-1, -2) * (c // self.heads) ** -0.5
        if exists(mask):
            sim.masked_fill_(~mask[:, None, None], -th.finfo(sim.dtype).max)
        out = (sim.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, -1, c)
        return x + out.permute(0, 2, 1).reshape(b, c, *spatial)


class UNetModel(nn.Module):
    def __init__(
        self,
        in_channels=3,
        model_channels=8,
        channel_mult=(1, 2),
        attention_resolutions=(2,),
        num_classes=None,
        context_dim=None,
        use_fp16=False,
    ):
        super().__init__()
        self.num_classes, self.model_channels = num_classes, model_channels
        self.dtype = th.float16 if use_fp16 else th.float32
        emb = model_channels * 4
        self.time_embed = nn.Sequential(nn.Linear(model_channels, emb), nn.SiLU(), nn.Linear(emb, emb))
        if self.num_classes is not None:
            self.label_emb = nn.Embedding(num_classes, emb)
        self.input_blocks = nn.ModuleList(
            [TimestepEmbedSequential(conv_nd(2, in_channels, model_channels, 3, padding=1))]
        )
        chans, ch, ds = [model_channels], model_channels, 1
        for level, mult in enumerate(channel_mult):
            layers = [
                ResBlock(
                    ch,
                    emb,
                    mult * model_channels,
                    use_scale_shift_norm=level % 2 == 0,
                    use_checkpoint=level == 0,
                )
            ]
            ch = mult * model_channels
            if ds in attention_resolutions:
                layers.append(CrossAttention(ch, context_dim))
            self.input_blocks.append(TimestepEmbedSequential(*layers))
            chans.append(ch)
            if level != len(channel_mult) - 1:
                self.input_blocks.append(TimestepEmbedSequential(nn.AvgPool2d(2)))
                chans.append(ch)
                ds *= 2
        self.middle_block = TimestepEmbedSequential(ResBlock(ch, emb), CrossAttention(ch, context_dim))
        self.output_blocks = nn.ModuleList()
        for i in range(len(chans)):
            layers = [ResBlock(ch + chans.pop(), emb, model_channels)]
            ch = model_channels
            if i == 1:
                layers.append(Upsample(ch, True))
            self.output_blocks.append(TimestepEmbedSequential(*layers))
        self.out = nn.Sequential(nn.GroupNorm(2, ch), nn.SiLU(), conv_nd(2, ch, in_channels, 3, padding=1))

    def forward(self, x, timesteps=None, context=None, y=None, **kwargs):
        assert (y is not None) == (self.num_classes is not None), "must specify y if class-conditional"
        hs = []
        emb = self.time_embed(timestep_embedding(timesteps, self.model_channels))
        if self.num_classes is not None:
            assert y.shape == (x.shape[0],)
            emb = emb + self.label_emb(y)
        h = x.type(self.dtype)
        for module in self.input_blocks:
            h = module(h, emb, context)
            hs.append(h)
        h = self.middle_block(h, emb, context)
        for module in self.output_blocks:
            skip = hs.pop()
            if skip.shape[-1] != h.shape[-1]:
                h = F.interpolate(h, size=skip.shape[-2:])
            h = th.cat([h, skip], dim=1)
            h = module(h, emb, context)
        h = F.interpolate(h, size=x.shape[2:]).type(x.dtype)
        return self.out(h)


def tiny():
    model = UNetModel(num_classes=4, context_dim=6).eval()
    return model, [
        {
            "x": th.randn(2, 3, 8, 8),
            "timesteps": th.tensor([1, 7]),
            "context": th.randn(2, 5, 6),
            "y": th.tensor([0, 3]),
        }
    ]
