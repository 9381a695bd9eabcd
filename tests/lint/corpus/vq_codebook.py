import torch
import torch.nn as nn
import torch.nn.functional as F
import numpy as np
from torch import einsum


def nonlinearity(x):
    return x * torch.sigmoid(x)


def Normalize(in_channels):
    return torch.nn.GroupNorm(num_groups=4, num_channels=in_channels, eps=1e-6, affine=True)


class Downsample(nn.Module):
    def __init__(self, in_channels, with_conv):
        super().__init__()
        self.with_conv = with_conv
        if self.with_conv:
            self.conv = torch.nn.Conv2d(in_channels, in_channels, kernel_size=3, stride=2, padding=0)

    def forward(self, x):
        if self.with_conv:
            pad = (0, 1, 0, 1)
            x = torch.nn.functional.pad(x, pad, mode="constant", value=0)
            x = self.conv(x)
        else:
            x = torch.nn.functional.avg_pool2d(x, kernel_size=2, stride=2)
        return x


class VectorQuantizer(nn.Module):
    def __init__(
        self, n_e, e_dim, beta, remap=None, unknown_index="random", sane_index_shape=False, legacy=True
    ):
        super().__init__()
        self.n_e = n_e
        self.e_dim = e_dim
        self.beta = beta
        self.legacy = legacy
        self.embedding = nn.Embedding(self.n_e, self.e_dim)
        self.embedding.weight.data.uniform_(-1.0 / self.n_e, 1.0 / self.n_e)
        self.remap = remap
        if self.remap is not None:
            self.register_buffer("used", torch.tensor(np.asarray(self.remap)))
            self.re_embed = self.used.shape[0]
            self.unknown_index = unknown_index
            if self.unknown_index == "extra":
                self.unknown_index = self.re_embed
                self.re_embed = self.re_embed + 1
        else:
            self.re_embed = n_e
        self.sane_index_shape = sane_index_shape

    def remap_to_used(self, inds):
        ishape = inds.shape
        assert len(ishape) > 1
        inds = inds.reshape(ishape[0], -1)
        used = self.used.to(inds)
        match = (inds[:, :, None] == used[None, None, ...]).long()
        new = match.argmax(-1)
        unknown = match.sum(2) < 1
        if self.unknown_index == "random":
            new[unknown] = torch.randint(0, self.re_embed, size=new[unknown].shape).to(device=new.device)
        else:
            new[unknown] = self.unknown_index
        return new.reshape(ishape)

    def forward(self, z, temp=None, rescale_logits=False, return_logits=False):
        assert temp is None or temp == 1.0, "Only for interface compatible with Gumbel"
        assert rescale_logits is False, "Only for interface compatible with Gumbel"
        z = z.permute(0, 2, 3, 1).contiguous()
        z_flattened = z.view(-1, self.e_dim)
        d = (
            torch.sum(z_flattened**2, dim=1, keepdim=True)
            + torch.sum(self.embedding.weight**2, dim=1)
            - 2 * einsum("bd,dn->bn", z_flattened, self.embedding.weight.t())
        )
        min_encoding_indices = torch.argmin(d, dim=1)
        z_q = self.embedding(min_encoding_indices).view(z.shape)
        perplexity = None
        min_encodings = None
        if not self.legacy:
            loss = self.beta * torch.mean((z_q.detach() - z) ** 2) + torch.mean((z_q - z.detach()) ** 2)
        else:
            loss = torch.mean((z_q.detach() - z) ** 2) + self.beta * torch.mean((z_q - z.detach()) ** 2)
        z_q = z + (z_q - z).detach()
        z_q = z_q.permute(0, 3, 1, 2).contiguous()
        if self.remap is not None:
            min_encoding_indices = min_encoding_indices.reshape(z.shape[0], -1)
            min_encoding_indices = self.remap_to_used(min_encoding_indices)
            min_encoding_indices = min_encoding_indices.reshape(-1, 1)
        if self.sane_index_shape:
            min_encoding_indices = min_encoding_indices.reshape(z_q.shape[0], z_q.shape[2], z_q.shape[3])
        return z_q, loss, (perplexity, min_encodings, min_encoding_indices)


class EMAQuantizer(nn.Module):
    def __init__(self, num_tokens, dim, decay=0.99, eps=1e-5):
        super().__init__()
        self.decay, self.eps, self.num_tokens = decay, eps, num_tokens
        self.register_buffer("codebook", torch.randn(num_tokens, dim))
        self.register_buffer("cluster_size", torch.zeros(num_tokens))
        self.register_buffer("initted", torch.Tensor([0]))

    def init_embed_(self, data):
        if self.initted:
            return
        self.codebook.data.copy_(data[: self.num_tokens])
        self.initted.data.copy_(torch.Tensor([1]))

    def expire_codes_(self, batch_samples):
        expired = self.cluster_size < 1
        if not torch.any(expired):
            return
        self.codebook.data[expired] = batch_samples[: expired.sum()]

    def forward(self, x):
        shape, dtype = x.shape, x.dtype
        flat = x.reshape(-1, x.shape[-1])
        self.init_embed_(flat)
        dist = -(
            flat.pow(2).sum(1, keepdim=True)
            - 2 * flat @ self.codebook.t()
            + self.codebook.t().pow(2).sum(0, keepdim=True)
        )
        embed_ind = dist.max(dim=-1).indices
        onehot = F.one_hot(embed_ind, self.num_tokens).type(dtype)
        quantize = F.embedding(embed_ind, self.codebook).view(*shape)
        if self.training:
            self.cluster_size.data.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
            self.expire_codes_(flat)
        usage = torch.unique(embed_ind).numel() / self.num_tokens
        probs = onehot.mean(0)
        perplexity = torch.exp(-torch.sum(probs * torch.log(probs + 1e-10)))
        return quantize, embed_ind.view(shape[:-1]), {"usage": usage, "perplexity": perplexity}


class VQModel(nn.Module):
    def __init__(self, ddconfig, n_embed=16, embed_dim=4):
        super().__init__()
        ch = ddconfig["ch"]
        self.conv_in = nn.Conv2d(ddconfig["in_channels"], ch, 3, padding=1)
        self.norm = Normalize(ch)
        self.down = nn.ModuleList()
        for i_level in range(len(ddconfig["ch_mult"])):
            block = nn.Module()
            block.conv = nn.Conv2d(ch, ch, 3, padding=1)
            if i_level != len(ddconfig["ch_mult"]) - 1:
                block.downsample = Downsample(ch, ddconfig.get("resamp_with_conv", True))
            self.down.append(block)
        self.quantize = VectorQuantizer(
            n_embed, embed_dim, beta=0.25, remap=[1, 3, 5], unknown_index="random"
        )
        self.ema = EMAQuantizer(8, embed_dim)
        self.quant_conv = nn.Conv2d(ch, embed_dim, 1)
        self.levels = len(ddconfig["ch_mult"])

    def encode(self, x):
        h = self.conv_in(x)
        for i_level in range(self.levels):
            h = self.down[i_level].conv(nonlinearity(h))
            if i_level != self.levels - 1:
                h = self.down[i_level].downsample(h)
        return self.quant_conv(nonlinearity(self.norm(h)))

    def forward(self, input):
        h = self.encode(input)
        quant, diff, (_, _, ind) = self.quantize(h)
        second, codes, info = self.ema(quant.flatten(2).transpose(1, 2))
        return second, diff, ind, info


def tiny():
    return VQModel({"ch": 8, "in_channels": 3, "ch_mult": (1, 2)}).eval(), [
        {"input": torch.randn(2, 3, 8, 8)}
    ]
