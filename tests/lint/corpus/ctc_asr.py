"""A speech encoder with lengths, masks and greedy CTC, after the manner of the toolkits."""

import argparse
import logging
import math
from typing import List, Optional, Tuple

import torch
from torch import nn


def make_pad_mask(lengths, xs=None, length_dim=-1, maxlen=None):
    if length_dim == 0:
        raise ValueError("length_dim cannot be 0: {}".format(length_dim))
    if not isinstance(lengths, list):
        lengths = lengths.long().tolist()
    bs = int(len(lengths))
    if maxlen is None:
        if xs is None:
            maxlen = int(max(lengths))
        else:
            maxlen = xs.size(length_dim)
    else:
        assert xs is None
        assert maxlen >= int(max(lengths))
    seq_range = torch.arange(0, maxlen, dtype=torch.int64)
    seq_range_expand = seq_range.unsqueeze(0).expand(bs, maxlen)
    seq_length_expand = seq_range_expand.new(lengths).unsqueeze(-1)
    mask = seq_range_expand >= seq_length_expand
    if xs is not None:
        assert xs.size(0) == bs, (xs.size(0), bs)
        if length_dim < 0:
            length_dim = xs.dim() + length_dim
        ind = tuple(slice(None) if i in (0, length_dim) else None for i in range(xs.dim()))
        mask = mask[ind].expand_as(xs).to(xs.device)
    return mask


def make_non_pad_mask(lengths, xs=None, length_dim=-1):
    return ~make_pad_mask(lengths, xs, length_dim)


def subsequent_mask(size, device="cpu", dtype=torch.bool):
    ret = torch.ones(size, size, device=device, dtype=dtype)
    return torch.tril(ret, out=ret)


class Conv2dSubsampling(nn.Module):
    def __init__(self, idim, odim):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, odim, 3, 2), nn.ReLU(), nn.Conv2d(odim, odim, 3, 2), nn.ReLU())
        self.out = nn.Linear(odim * (((idim - 1) // 2 - 1) // 2), odim)

    def forward(self, x, x_mask):
        x = x.unsqueeze(1)
        x = self.conv(x)
        b, c, t, f = x.size()
        x = self.out(x.transpose(1, 2).contiguous().view(b, t, c * f))
        if x_mask is None:
            return x, None
        return x, x_mask[:, :, :-2:2][:, :, :-2:2]


class RelPositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=64):
        super().__init__()
        self.d_model = d_model
        self.xscale = math.sqrt(d_model)
        self.pe = None
        self.extend_pe(torch.tensor(0.0).expand(1, max_len))

    def extend_pe(self, x):
        if self.pe is not None:
            if self.pe.size(1) >= x.size(1):
                if self.pe.dtype != x.dtype or self.pe.device != x.device:
                    self.pe = self.pe.to(dtype=x.dtype, device=x.device)
                return
        pe = torch.zeros(x.size(1), self.d_model)
        position = torch.arange(0, x.size(1), dtype=torch.float32).unsqueeze(1)
        div_term = torch.exp(
            torch.arange(0, self.d_model, 2, dtype=torch.float32) * -(math.log(10000.0) / self.d_model)
        )
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.pe = pe.unsqueeze(0).to(device=x.device, dtype=x.dtype)

    def forward(self, x: torch.Tensor):
        self.extend_pe(x)
        return x * self.xscale + self.pe[:, : x.size(1)]


class MultiHeadedAttention(nn.Module):
    def __init__(self, n_head, n_feat):
        super().__init__()
        assert n_feat % n_head == 0
        self.d_k = n_feat // n_head
        self.h = n_head
        self.linear_q, self.linear_k, self.linear_v, self.linear_out = [
            nn.Linear(n_feat, n_feat) for _ in range(4)
        ]
        self.attn = None

    def forward(self, query, key, value, mask):
        n_batch = query.size(0)
        q, k, v = [
            lin(x).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip((self.linear_q, self.linear_k, self.linear_v), (query, key, value))
        ]
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            mask = mask.unsqueeze(1).eq(0)
            scores = scores.masked_fill(mask, float(torch.finfo(scores.dtype).min))
            self.attn = torch.softmax(scores, dim=-1).masked_fill(mask, 0.0)
        else:
            self.attn = torch.softmax(scores, dim=-1)
        x = torch.matmul(self.attn, v)
        return self.linear_out(x.transpose(1, 2).contiguous().view(n_batch, -1, self.h * self.d_k))


class Encoder(nn.Module):
    def __init__(self, args: argparse.Namespace):
        super().__init__()
        self.embed = Conv2dSubsampling(args.idim, args.adim)
        self.pos = RelPositionalEncoding(args.adim)
        self.layers = nn.ModuleList(
            [MultiHeadedAttention(args.aheads, args.adim) for _ in range(args.elayers)]
        )
        self.after_norm = nn.LayerNorm(args.adim)
        self.interctc = set(args.interctc_layer_idx)

    def forward(self, xs_pad: torch.Tensor, ilens: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, List]:
        masks = (~make_pad_mask(ilens)[:, None, :]).to(xs_pad.device)
        xs_pad, masks = self.embed(xs_pad, masks)
        xs_pad = self.pos(xs_pad)
        intermediate_outs = []
        for layer_idx, layer in enumerate(self.layers):
            xs_pad = xs_pad + layer(xs_pad, xs_pad, xs_pad, masks)
            if layer_idx + 1 in self.interctc:
                intermediate_outs.append((layer_idx + 1, xs_pad))
        xs_pad = self.after_norm(xs_pad)
        olens = masks.squeeze(1).sum(1)
        if len(intermediate_outs) > 0:
            return xs_pad, olens, intermediate_outs
        return xs_pad, olens, []


class ASRModel(nn.Module):
    def __init__(self, args, vocab=12, blank=0):
        super().__init__()
        self.encoder = Encoder(args)
        self.ctc_lo = nn.Linear(args.adim, vocab)
        self.blank = blank
        self.token_list = [chr(97 + i) for i in range(vocab)]

    def greedy(self, logp, lens):
        hyps = []
        for b in range(logp.size(0)):
            best = logp[b, : lens[b]].argmax(-1)
            best = torch.unique_consecutive(best)
            best = best[best != self.blank]
            hyps.append([self.token_list[i] for i in best.tolist()])
        return hyps

    def forward(self, speech, speech_lengths, text=None, text_lengths=None, **kwargs):
        assert speech.shape[0] == speech_lengths.shape[0], (speech.shape, speech_lengths.shape)
        batch_size = speech.shape[0]
        speech = speech[:, : speech_lengths.max()]
        out, olens, inter = self.encoder(speech, speech_lengths)
        logp = torch.log_softmax(self.ctc_lo(out), dim=-1)
        stats = dict(frames=out.size(1), batch=batch_size, n_inter=len(inter))
        if text is not None:
            return torch.nn.functional.ctc_loss(logp.transpose(0, 1), text, olens, text_lengths), stats
        logging.debug("encoded %d frames", stats["frames"])
        return logp, self.greedy(logp, olens), stats


def tiny():
    args = argparse.Namespace(idim=16, adim=8, aheads=2, elayers=2, interctc_layer_idx=[1])
    return ASRModel(args).eval(), [
        {"speech": torch.randn(2, 30, 16), "speech_lengths": torch.tensor([30, 22])}
    ]
