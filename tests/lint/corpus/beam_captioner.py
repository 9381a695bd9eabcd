"""Image captioning with the beam search inside the module."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class AttModel(nn.Module):
    def __init__(self, opt):
        super(AttModel, self).__init__()
        self.vocab_size = opt.vocab_size
        self.rnn_size = opt.rnn_size
        self.seq_length = getattr(opt, "max_length", 20) or opt.seq_length
        self.bos_idx = getattr(opt, "bos_idx", 0)
        self.eos_idx = getattr(opt, "eos_idx", 0)
        self.use_bn = getattr(opt, "use_bn", 0)
        self.embed = nn.Sequential(
            nn.Embedding(self.vocab_size + 1, self.rnn_size), nn.ReLU(), nn.Dropout(0.1)
        )
        self.att_embed = nn.Sequential(
            *(
                ((nn.BatchNorm1d(opt.att_feat_size),) if self.use_bn else ())
                + (nn.Linear(opt.att_feat_size, self.rnn_size), nn.ReLU())
            )
        )
        self.core = nn.LSTMCell(2 * self.rnn_size, self.rnn_size)
        self.h2att = nn.Linear(self.rnn_size, self.rnn_size)
        self.logit = nn.Linear(self.rnn_size, self.vocab_size + 1)
        self.vocab = opt.vocab
        self.bad_endings_ix = [int(k) for k, v in self.vocab.items() if v in ("a", "the")]

    def init_hidden(self, bsz):
        weight = self.logit.weight
        return weight.new_zeros(bsz, self.rnn_size), weight.new_zeros(bsz, self.rnn_size)

    def clip_att(self, att_feats, att_masks):
        if att_masks is not None:
            max_len = att_masks.data.long().sum(1).max()
            att_feats = att_feats[:, :max_len].contiguous()
            att_masks = att_masks[:, :max_len].contiguous()
        return att_feats, att_masks

    def get_logprobs_state(self, it, att, masks, state):
        xt = self.embed(it)
        weight = (self.h2att(state[0]).unsqueeze(1) * att).sum(-1)
        if masks is not None:
            weight = weight.masked_fill(masks == 0, -1e9)
        ctx = (F.softmax(weight, dim=1).unsqueeze(-1) * att).sum(1)
        state = self.core(torch.cat([xt, ctx], 1), state)
        return F.log_softmax(self.logit(state[0]), dim=1), state

    def forward(self, *args, **kwargs):
        mode = kwargs.pop("mode", "forward")
        return getattr(self, "_" + mode)(*args, **kwargs)

    def _forward(self, att_feats, seq, att_masks=None):
        batch_size = att_feats.size(0)
        att_feats, att_masks = self.clip_att(att_feats, att_masks)
        att = self.att_embed(att_feats)
        state = self.init_hidden(batch_size)
        outputs = att.new_zeros(batch_size, seq.size(1), self.vocab_size + 1)
        for i in range(seq.size(1)):
            it = seq[:, i].clone()
            if i >= 1 and seq[:, i].sum() == 0:
                break
            output, state = self.get_logprobs_state(it, att, att_masks, state)
            outputs[:, i] = output
        return outputs

    def _sample(self, att_feats, att_masks=None, opt={}):
        beam_size = opt.get("beam_size", 1)
        temperature = opt.get("temperature", 1.0)
        remove_bad_endings = opt.get("remove_bad_endings", 0)
        if beam_size > 1:
            return self._sample_beam(att_feats, att_masks, opt)
        batch_size = att_feats.size(0)
        att = self.att_embed(att_feats)
        state = self.init_hidden(batch_size)
        seq = att_feats.new_full((batch_size, self.seq_length), self.eos_idx, dtype=torch.long)
        it = att_feats.new_full([batch_size], self.bos_idx, dtype=torch.long)
        unfinished = None
        for t in range(self.seq_length + 1):
            logprobs, state = self.get_logprobs_state(it, att, att_masks, state)
            if remove_bad_endings and t > 0:
                prev_bad = torch.isin(seq[:, t - 1], torch.tensor(self.bad_endings_ix, device=seq.device))
                logprobs[prev_bad, 0] = float("-inf")
            if t == self.seq_length:
                break
            it = (logprobs / temperature).argmax(-1)
            if t == 0:
                unfinished = it != self.eos_idx
            else:
                it[~unfinished] = self.eos_idx
                unfinished = unfinished & (it != self.eos_idx)
            seq[:, t] = it
            if unfinished.sum() == 0:
                break
        return seq

    def _sample_beam(self, att_feats, att_masks, opt):
        beam_size = opt["beam_size"]
        att = self.att_embed(att_feats)
        done = []
        for b in range(att.size(0)):
            feats = att[b : b + 1].expand(beam_size, -1, -1)
            state = self.init_hidden(beam_size)
            scores = att.new_zeros(beam_size)
            tokens = att.new_full((beam_size, 1), self.bos_idx, dtype=torch.long)
            finished = []
            for t in range(self.seq_length):
                logp, state = self.get_logprobs_state(tokens[:, -1], feats, None, state)
                cand = (scores[:, None] + logp) if t > 0 else logp[:1]
                top, ix = cand.flatten().topk(beam_size)
                beam_ix = ix // (self.vocab_size + 1)
                word_ix = ix % (self.vocab_size + 1)
                tokens = torch.cat([tokens[beam_ix], word_ix[:, None]], 1)
                state = tuple(s[beam_ix] for s in state)
                scores = top
                for k in range(beam_size):
                    if word_ix[k] == self.eos_idx:
                        finished.append({"seq": tokens[k], "p": top[k].item()})
                if len(finished) >= beam_size:
                    break
            if not finished:
                finished = [{"seq": tokens[0], "p": scores[0].item()}]
            finished = sorted(finished, key=lambda x: -x["p"])
            done.append(finished[0]["seq"])
        return done


class Opt:
    vocab_size, rnn_size, max_length, att_feat_size = 9, 8, 4, 6
    vocab = {"1": "a", "2": "dog", "3": "the"}


def tiny():
    model = AttModel(Opt()).eval()
    feats, masks = torch.randn(2, 5, 6), torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
    calls = [
        {
            "mode": "forward",
            "att_feats": feats,
            "seq": torch.tensor([[1, 2, 0, 0], [3, 4, 0, 0]]),
            "att_masks": masks,
        },
        {"mode": "sample", "att_feats": feats, "opt": {"remove_bad_endings": 1}},
        {"mode": "sample", "att_feats": feats, "opt": {"beam_size": 2}},
    ]
    return model, calls
