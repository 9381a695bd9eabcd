"""Models that call solvers, losses and decoders of packages, for those of `benchmarks.tiny_strangers_fifth`.

The linter reads this file too: what a package's functions get is known where they are called.
"""

from typing import Any

import torch
from torch import nn


class RankingLosses(nn.Module):
    """Losses of scores of documents, of which some are padding."""

    def forward(self, scores: torch.Tensor, relevance: torch.Tensor) -> Any:
        from allrank.models import losses

        return (
            losses.approxNDCGLoss(scores, relevance),
            losses.lambdaLoss(scores, relevance),
            losses.listNet(scores, relevance),
            losses.listMLE(scores, relevance),
            losses.neuralNDCG(scores, relevance),
            losses.rankNet(scores, relevance),
        )


class Chains(nn.Module):
    """The partition and the best of chains and of segments."""

    def forward(self, chains: torch.Tensor, segments: torch.Tensor, lengths: torch.Tensor) -> Any:
        from torch_struct import LinearChainCRF, SemiMarkovCRF

        labels = LinearChainCRF(chains, lengths=lengths)
        spans = SemiMarkovCRF(segments, lengths=lengths)
        with torch.enable_grad():
            return labels.partition, labels.argmax, spans.partition, spans.argmax


class Trees(nn.Module):
    """The partition and the marginals of trees."""

    def forward(self, arcs: torch.Tensor, spans: torch.Tensor, lengths: torch.Tensor) -> Any:
        from torch_struct import NonProjectiveDependencyCRF, TreeCRF

        dependencies = NonProjectiveDependencyCRF(arcs, lengths=lengths)
        constituents = TreeCRF(spans, lengths=lengths)
        with torch.enable_grad():
            return dependencies.partition, dependencies.marginals, constituents.partition, constituents.argmax


class Flow(nn.Module):
    """Samples of a velocity, by steps of a solver."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def velocity(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([x, t.expand(x.shape[0], 1)], dim=-1))

    def forward(self, noise: torch.Tensor) -> Any:
        from flow_matching.solver import ODESolver

        solver = ODESolver(velocity_model=self.velocity)
        return solver.sample(x_init=noise, method="midpoint", step_size=0.25)


class Equation(nn.Module):
    """A stochastic differential equation with learnt coefficients."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        self.drift = nn.Linear(4, 4)

    def f(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.drift(y)

    def g(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 0.1 * torch.sigmoid(y)


class Diffusion(nn.Module):
    """A path of the equation."""

    def __init__(self, adaptive: bool) -> None:
        super().__init__()
        self.equation = Equation()
        self.adaptive = adaptive

    def forward(self, x: torch.Tensor) -> Any:
        import torchsde

        times = torch.linspace(0, 1, 3, device=x.device)
        return torchsde.sdeint(self.equation, x, times, dt=0.25, adaptive=self.adaptive, method="euler")


class Matching(nn.Module):
    """A point on the way from noise to data, and its velocity."""

    def forward(self, noise: torch.Tensor, data: torch.Tensor) -> Any:
        from torchcfm import ConditionalFlowMatcher

        return ConditionalFlowMatcher(sigma=0.1).sample_location_and_conditional_flow(noise, data)


class Pitch(nn.Module):
    """Pitch of logits."""

    def __init__(self) -> None:
        super().__init__()
        from penn.decode import Argmax

        self.decoder = Argmax()

    def forward(self, logits: torch.Tensor) -> Any:
        return self.decoder(logits)


class LateInteraction(nn.Module):
    """Scores of documents by the similarity of each token."""

    def forward(self, queries: torch.Tensor, documents: torch.Tensor, mask: torch.Tensor) -> Any:
        from colbert.modeling.colbert import colbert_score

        return colbert_score(queries, documents, mask)


class Landmarks(nn.Module):
    """Points of heat maps."""

    def forward(self, heatmaps: torch.Tensor) -> Any:
        from face_alignment.utils import get_preds_fromhm

        return get_preds_fromhm(heatmaps.cpu().numpy())


class Voice(nn.Module):
    """The probability of speech in a window."""

    def reset_states(self) -> None:
        pass

    def forward(self, window: torch.Tensor, rate: int) -> torch.Tensor:
        return window.abs().mean().clamp(0, 1)


class Speech(nn.Module):
    """Where a recording has speech."""

    def __init__(self) -> None:
        super().__init__()
        self.voice = Voice()

    def forward(self, audio: torch.Tensor) -> Any:
        from silero_vad import get_speech_timestamps

        return get_speech_timestamps(audio, self.voice, sampling_rate=16_000)
