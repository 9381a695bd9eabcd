"""Non-autoregressive speech synthesis: variance adaptor and length regulator."""
import json
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def pad(input_ele, mel_max_length=None):
    if mel_max_length:
        max_len = mel_max_length
    else:
        max_len = max([input_ele[i].size(0) for i in range(len(input_ele))])
    out_list = list()
    for i, batch in enumerate(input_ele):
        if len(batch.shape) == 1:
            one_batch_padded = F.pad(batch, (0, max_len - batch.size(0)), "constant", 0.0)
        elif len(batch.shape) == 2:
            one_batch_padded = F.pad(batch, (0, 0, 0, max_len - batch.size(0)), "constant", 0.0)
        out_list.append(one_batch_padded)
    return torch.stack(out_list)


def get_mask_from_lengths(lengths, max_len=None):
    batch_size = lengths.shape[0]
    if max_len is None:
        max_len = torch.max(lengths).item()
    ids = torch.arange(0, max_len).unsqueeze(0).expand(batch_size, -1).to(lengths.device)
    return ids >= lengths.unsqueeze(1).expand(-1, max_len)


class LengthRegulator(nn.Module):
    def LR(self, x, duration, max_len):
        output = list()
        mel_len = list()
        for batch, expand_target in zip(x, duration):
            expanded = self.expand(batch, expand_target)
            output.append(expanded)
            mel_len.append(expanded.shape[0])
        if max_len is not None:
            output = pad(output, max_len)
        else:
            output = pad(output)
        return output, torch.LongTensor(mel_len).to(x.device)

    def expand(self, batch, predicted):
        out = list()
        for i, vec in enumerate(batch):
            expand_size = predicted[i].item()
            out.append(vec.expand(max(int(expand_size), 0), -1))
        return torch.cat(out, 0)

    def forward(self, x, duration, max_len):
        output, mel_len = self.LR(x, duration, max_len)
        return output, mel_len


class VariancePredictor(nn.Module):
    def __init__(self, config):
        super().__init__()
        h = config["hidden"]
        self.conv = nn.Conv1d(h, h, 3, padding=1)
        self.norm, self.linear = nn.LayerNorm(h), nn.Linear(h, 1)

    def forward(self, x, mask):
        out = self.norm(self.conv(x.transpose(1, 2)).transpose(1, 2).relu())
        out = self.linear(out).squeeze(-1)
        if mask is not None:
            out = out.masked_fill(mask, 0.0)
        return out


class VarianceAdaptor(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.duration_predictor = VariancePredictor(config)
        self.pitch_predictor = VariancePredictor(config)
        self.length_regulator = LengthRegulator()
        n_bins = config["n_bins"]
        self.pitch_bins = nn.Parameter(torch.linspace(-1, 1, n_bins - 1), requires_grad=False)
        self.pitch_embedding = nn.Embedding(n_bins, config["hidden"])
        self.level = config["pitch"]["level"]
        assert self.level in ["phoneme", "frame"]

    def get_pitch_embedding(self, x, target, mask, control):
        prediction = self.pitch_predictor(x, mask)
        if target is not None:
            embedding = self.pitch_embedding(torch.bucketize(target, self.pitch_bins))
        else:
            prediction = prediction * control
            embedding = self.pitch_embedding(torch.bucketize(prediction, self.pitch_bins))
        return prediction, embedding

    def forward(self, x, src_mask, mel_mask=None, max_len=None, pitch_target=None, duration_target=None, p_control=1.0, d_control=1.0):
        log_duration_prediction = self.duration_predictor(x, src_mask)
        if self.level == "phoneme":
            pitch_prediction, pitch_embedding = self.get_pitch_embedding(x, pitch_target, src_mask, p_control)
            x = x + pitch_embedding
        if duration_target is not None:
            x, mel_len = self.length_regulator(x, duration_target, max_len)
            duration_rounded = duration_target
        else:
            duration_rounded = torch.clamp(torch.round(torch.exp(log_duration_prediction) + 1) * d_control, min=0)
            x, mel_len = self.length_regulator(x, duration_rounded, max_len)
            mel_mask = get_mask_from_lengths(mel_len)
        if self.level == "frame":
            pitch_prediction, pitch_embedding = self.get_pitch_embedding(x, pitch_target, mel_mask, p_control)
            x = x + pitch_embedding
        return x, pitch_prediction, log_duration_prediction, duration_rounded, mel_len, mel_mask


class Postnet(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Sequential(nn.Conv1d(n, n, 5, padding=2), nn.BatchNorm1d(n)) for _ in range(3)])

    def forward(self, x):
        x = x.contiguous().transpose(1, 2)
        for i in range(len(self.convolutions) - 1):
            x = F.dropout(torch.tanh(self.convolutions[i](x)), 0.5, self.training)
        return self.convolutions[-1](x).contiguous().transpose(1, 2)


class FastTTS(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(30, config["hidden"], padding_idx=0)
        self.encoder = nn.TransformerEncoderLayer(config["hidden"], 2, 16, batch_first=True)
        self.adaptor = VarianceAdaptor(config)
        self.mel_linear = nn.Linear(config["hidden"], config["n_mel"])
        self.postnet = Postnet(config["n_mel"])
        self.speaker_emb = None
        if config.get("multi_speaker"):
            self.speaker_emb = nn.Embedding(config["n_speaker"], config["hidden"])

    def forward(self, speakers, texts, src_lens, max_src_len, mel_lens=None, max_mel_len=None, d_targets=None):
        src_masks = get_mask_from_lengths(src_lens, max_src_len)
        mel_masks = get_mask_from_lengths(mel_lens, max_mel_len) if mel_lens is not None else None
        output = self.embed(texts)
        for_attention = src_masks.float().masked_fill(src_masks, -1e4)
        output = self.encoder(output, src_key_padding_mask=for_attention)
        if self.speaker_emb is not None:
            output = output + self.speaker_emb(speakers).unsqueeze(1).expand(-1, max_src_len, -1)
        output, p, log_d, d_rounded, mel_lens, mel_masks = self.adaptor(output, src_masks, mel_masks, max_mel_len, None, d_targets)
        output = self.mel_linear(output)
        postnet_output = self.postnet(output) + output
        if self.config["vocoder"]["clip"]:
            max_wav_value = self.config["vocoder"]["max"]
            postnet_output = postnet_output.clamp(-max_wav_value, max_wav_value)
        lengths = mel_lens.cpu().numpy()
        wavs = [postnet_output[i, : lengths[i]].mean(-1) for i in range(len(lengths))]
        return output, postnet_output, p, log_d, d_rounded, src_masks, mel_masks, wavs


def tiny():
    config = {"hidden": 8, "n_bins": 6, "n_mel": 4, "multi_speaker": True, "n_speaker": 3,
              "pitch": {"level": "phoneme"}, "vocoder": {"clip": True, "max": 4.0}}
    base = {"speakers": torch.tensor([0, 2]), "texts": torch.randint(1, 30, (2, 5)), "src_lens": torch.tensor([5, 3]), "max_src_len": 5}
    durations = torch.tensor([[1, 2, 1, 1, 1], [2, 2, 1, 0, 0]])
    return FastTTS(config).eval(), [base, {**base, "mel_lens": durations.sum(1), "max_mel_len": 6, "d_targets": durations}]
