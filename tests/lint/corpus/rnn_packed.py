"""Packed sequences, sorting by length, hierarchical pooling."""
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence


def sort_batch(x, lengths):
    sorted_lengths, order = lengths.sort(0, descending=True)
    _, unsort = order.sort(0)
    return x[order], sorted_lengths, unsort


class Encoder(nn.Module):
    def __init__(self, vocab=20, dim=8):
        super().__init__()
        self.emb, self.rnn = nn.Embedding(vocab, dim, padding_idx=0), nn.LSTM(dim, dim, batch_first=True, bidirectional=True)

    def forward(self, tokens, lengths=None):
        if lengths is None:
            lengths = tokens.ne(0).sum(1)
        x, sorted_lengths, unsort = sort_batch(self.emb(tokens), lengths)
        packed = pack_padded_sequence(x, sorted_lengths.cpu(), batch_first=True)
        out, (h, c) = self.rnn(packed)
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=tokens.size(1))
        return out[unsort], h.transpose(0, 1)[unsort].flatten(1)


class Hierarchical(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.encoder = Encoder(dim=dim)
        self.score, self.merge = nn.Linear(dim * 2, 1), nn.GRUCell(dim * 2, dim * 2)
        self.special = [1, 2]

    def segments(self, tokens, sep):
        spans = []
        for row in tokens:
            ends = (row == sep).nonzero(as_tuple=True)[0].tolist()
            spans.append([(a, b) for a, b in zip([0] + ends, ends + [len(row)]) if b > a])
        return spans

    def forward(self, tokens, sep=3):
        out, last = self.encoder(tokens)
        keep = torch.isin(tokens, torch.tensor(self.special, device=tokens.device)).logical_not()
        weights = self.score(out).squeeze(-1).masked_fill(~keep, -1e9).softmax(-1)
        pooled = torch.einsum("bl,bld->bd", weights, out)
        docs = []
        for i, spans in enumerate(self.segments(tokens, sep)):
            docs.append(torch.stack([out[i, a:b].mean(0) for a, b in spans]))
        docs = pad_sequence(docs, batch_first=True)
        h = pooled
        for t in range(docs.size(1)):
            h = self.merge(docs[:, t], h)
        if tokens[0, 0] in self.special:
            h = h + last
        return h, weights


def tiny():
    tokens = torch.tensor([[1, 5, 3, 6, 7, 0], [4, 8, 9, 3, 2, 5]])
    return Hierarchical().eval(), [{"tokens": tokens}]
