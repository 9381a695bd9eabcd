"""What listens, decodes and routes with further models of `benchmarks.tiny_strangers_thirteenth`.

The linter reads this file with them.
"""

import types
from typing import Any

import torch
from torch import nn


class Line(nn.Module):
    """A reader of lines, greedily and with beams."""

    def __init__(self) -> None:
        super().__init__()
        from legere import model

        config = model.ModelConfig(4, ((4, 8, (2, 2)), (8, 8, (2, 1))), 8)
        self.model, self.greedy, self.beams = (
            model.build_model(config),
            model.ctc_greedy_decode,
            model.ctc_beam_search_decode,
        )

    def forward(self, images: torch.Tensor) -> Any:
        logits = self.model(images)
        return self.greedy(logits), self.beams(logits, 2)


class Heard(nn.Module):
    """The searches of a model that listens and tells sounds."""

    def __init__(self) -> None:
        super().__init__()
        from whisper_at import decoding

        self.network, self.embedding = nn.Linear(8, 12), nn.Embedding(12, 8)
        self.greedy, self.beams = decoding.GreedyDecoder(0.7, 11), decoding.BeamSearchDecoder(2, 11, self)
        tokenizer = types.SimpleNamespace(no_timestamps=4, timestamp_begin=5, eot=11)
        self.rules = [decoding.SuppressTokens([1, 2]), decoding.ApplyTimestampRules(tokenizer, 1, 3)]
        self.ranker = decoding.MaximumLikelihoodRanker(0.6)

    def rearrange_kv_cache(self, indices: Any) -> None:
        """Nothing is kept."""

    def forward(self, start: torch.Tensor) -> Any:
        results = []
        for decoder, width in ((self.greedy, 1), (self.beams, 2)):
            tokens = start.repeat_interleave(width, dim=0)
            scores = torch.zeros(len(tokens), device=start.device)
            if width > 1:
                decoder.reset()
            for _ in range(3):
                logits = self.network(self.embedding(tokens).mean(1))
                for rule in self.rules:
                    rule.apply(logits, tokens)
                tokens, ended = decoder.update(tokens, logits, scores)
                if ended:
                    break
            tokens = tokens.reshape(len(start), width, -1)
            tokens, sums = decoder.finalize(tokens, scores.reshape(len(start), width))
            found = [[t[: (t == 11).nonzero()[0, 0]] for t in row] for row in tokens]
            results.append(self.ranker.rank(found, sums))
        return results


class Interested(nn.Module):
    """Interests that follow what was clicked, and what was not."""

    def __init__(self) -> None:
        super().__init__()
        from prediction_flow.pytorch.nn.interest import Interest

        self.kinds = nn.ModuleList(
            Interest(4, kind, att_hidden_layers=[4], use_negsampling=True)
            for kind in ("GRU", "AIGRU", "AGRU", "AUGRU")
        )

    def forward(
        self, query: torch.Tensor, keys: torch.Tensor, lengths: torch.Tensor, others: torch.Tensor
    ) -> Any:
        return [kind(query, keys, lengths, others) for kind in self.kinds]


class Delayed(nn.Module):
    """Attention by how series repeat themselves, and by a few queries."""

    def __init__(self) -> None:
        super().__init__()
        from torch_timeseries.nn.AutoCorrelation import AutoCorrelation, AutoCorrelationLayer
        from torch_timeseries.nn.SelfAttention_Family import AttentionLayer, FlowAttention, ProbAttention

        self.layers = nn.ModuleList(
            [
                AutoCorrelationLayer(AutoCorrelation(factor=1), 8, 2), AttentionLayer(ProbAttention(factor=1), 8, 2),
                AttentionLayer(FlowAttention(), 8, 2),
            ]
        )  # fmt: skip

    def forward(self, series: torch.Tensor) -> Any:
        return [layer(series, series, series, None) for layer in self.layers]


class Detected(nn.Module):
    """Points of a map of features that are greatest in space and depth."""

    def __init__(self) -> None:
        super().__init__()
        from dloc.models.d2net.model_test import HandcraftedLocalizationModule, HardDetectionModule

        self.network, self.detect, self.locate = (
            nn.Conv2d(3, 4, 1),
            HardDetectionModule(),
            HandcraftedLocalizationModule(),
        )

    def forward(self, images: torch.Tensor) -> Any:
        found = self.network(images)
        places = torch.nonzero(self.detect(found)[0]).t()
        moved = self.locate(found)[0]
        offsets = moved[:, places[0], places[1], places[2]]
        kept = torch.min(torch.abs(offsets[0]) < 0.5, torch.abs(offsets[1]) < 0.5)
        positions = places[1:, kept].float() + offsets[:, kept]
        return positions, found[0, :, places[1], places[2]]


class Turned(nn.Module):
    """A ligand that is turned about its bonds."""

    def __init__(self) -> None:
        super().__init__()
        from torchdock.model.conformer_transformer import LigandConformerTransform

        self.kind, self.network = LigandConformerTransform, nn.Linear(3, 1)

    def forward(self, atoms: torch.Tensor, mask: torch.Tensor) -> Any:
        angles = self.network(atoms).mean(1)[:, 0]
        bent = self.kind.rotate_by_torsion(atoms, angles, 0, 1, mask, atoms[0])
        return self.kind.rotate_by_orientation(
            bent, bent.mean((0, 1)), nn.functional.normalize(atoms.new_ones(2, 4))
        )


class Bound(nn.Module):
    """A potential that follows charges."""

    def __init__(self) -> None:
        super().__init__()
        from xnn.common.data.atomic_data import AtomicGraph
        from xnn.gnn.models.aimnet2 import AIMNet2

        self.graph = AtomicGraph
        self.model = AIMNet2([1, 6, 8], 3.0, 4, 4, n_passes=2)

    def forward(self, numbers: torch.Tensor, places: torch.Tensor, pairs: torch.Tensor) -> Any:
        batch = torch.zeros_like(numbers)
        graph = self.graph(
            pos=places, atomic_numbers=numbers, edge_index=pairs, cell_shifts=places.new_zeros(pairs.shape[1], 3),
            batch=batch, n_atoms=batch.new_tensor([len(numbers)]),
        )  # fmt: skip
        return self.model(graph)


class Noisy(nn.Module):
    """A vocoder's steps from noise to sound."""

    def __init__(self) -> None:
        super().__init__()
        from wavegrad.model import WaveGrad

        self.model = WaveGrad(types.SimpleNamespace(n_mels=128))

    def forward(self, sound: torch.Tensor, mels: torch.Tensor, noise: torch.Tensor) -> Any:
        return self.model(sound, mels, noise)


class Named(nn.Module):
    """A tagger of packed sentences."""

    def __init__(self) -> None:
        super().__init__()
        from pytorch_ner.nn_modules.architecture import BiLSTM
        from pytorch_ner.nn_modules.embedding import Embedding
        from pytorch_ner.nn_modules.linear import LinearHead
        from pytorch_ner.nn_modules.rnn import DynamicRNN

        self.model = BiLSTM(
            Embedding(20, 4), DynamicRNN(nn.LSTM, 4, 4, 1, 0.0, False), LinearHead(nn.Linear(4, 3))
        )

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> Any:
        return self.model(words, lengths)
