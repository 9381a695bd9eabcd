"""What decodes, draws and retrieves with models of `benchmarks.tiny_strangers_thirteenth`, as their READMEs do.

The linter reads this file with them.
"""

from typing import Any

import torch
from torch import nn


class Tagged(nn.Module):
    """A tagger with transitions."""

    def __init__(self) -> None:
        super().__init__()
        from lightner.crf_model.crf import CRF, CRFLoss

        tags = {"<s>": 0, "<eof>": 1, "O": 2, "B": 3}
        self.crf, self.loss = CRF(8, 4), CRFLoss(tags)

    def forward(self, features: torch.Tensor, target: torch.Tensor, mask: torch.Tensor) -> Any:
        scores = self.crf(features).view(*features.shape[:2], 4, 4)
        return self.loss(scores, target, mask)


class Masked(nn.Module):
    """Masks of speech."""

    def __init__(self) -> None:
        super().__init__()
        from i6_models.parts.best_rq.mask import RandomMask
        from i6_models.primitives.specaugment import specaugment_v1_by_length

        self.network = nn.Linear(8, 8)
        self.mask, self.augment = RandomMask(8, "lernable", 0.2, 2), specaugment_v1_by_length

    def forward(self, sounds: torch.Tensor, mask: torch.Tensor) -> Any:
        features = self.network(sounds)
        augmented = self.augment(
            features, time_min_num_masks=1, time_max_mask_per_n_frames=4, time_mask_max_size=2, freq_min_num_masks=1,
            freq_max_num_masks=2, freq_mask_max_size=2,
        )  # fmt: skip
        return augmented, self.mask(features, mask)


class Ranked(nn.Module):
    """A recommender's loss by how many tries it takes."""

    def __init__(self) -> None:
        super().__init__()
        from collie.loss import adaptive_hinge_loss, warp_loss

        self.users, self.items = nn.Embedding(5, 4), nn.Embedding(9, 4)
        self.losses = warp_loss, adaptive_hinge_loss

    def forward(self, users: torch.Tensor, chosen: torch.Tensor, others: torch.Tensor) -> Any:
        user = self.users(users)
        scores, worse = (user * self.items(chosen)).sum(-1), (user * self.items(others)).sum(-1)
        return [loss(scores, worse, num_items=9) for loss in self.losses]


class Sampled(nn.Module):
    """Samplers of a retriever that follow its items."""

    def __init__(self) -> None:
        super().__init__()
        from recstudio.ann.sampler import (
            ClusterSamplerUniform,
            MIDXSamplerUniform,
            uniform_sample_masked_hist,
        )

        self.items = nn.Embedding(12, 4)
        self.samplers = [ClusterSamplerUniform(12, 2), MIDXSamplerUniform(12, 2)]
        self.masked = uniform_sample_masked_hist

    def forward(self, query: torch.Tensor, chosen: torch.Tensor, history: torch.Tensor) -> Any:
        drawn = []
        for sampler in self.samplers:
            sampler.update(self.items.weight, max_iter=3)
            drawn.append(sampler(query, 3, chosen))
        return drawn, self.masked(12, 3, history)


class Energetic(nn.Module):
    """Samplers of an energy, and couplings of two clouds."""

    def __init__(self) -> None:
        super().__init__()
        from torchebm.core import GaussianModel
        from torchebm.couplings.ot import (
            ExactOTCoupling,
            GreedyCoupling,
            SinkhornCoupling,
            UnbalancedSinkhornCoupling,
        )
        from torchebm.samplers import HamiltonianMonteCarlo, LangevinDynamics

        energy = GaussianModel(torch.zeros(2), torch.eye(2))
        self.network = nn.Linear(2, 2)
        self.samplers = [HamiltonianMonteCarlo(energy, 0.1, 2), LangevinDynamics(energy, 0.1)]
        self.couplings = [
            ExactOTCoupling(),
            GreedyCoupling(),
            SinkhornCoupling(n_iters=3),
            UnbalancedSinkhornCoupling(n_iters=3),
        ]

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        drawn = [
            sampler.sample(self.network(x), n_steps=2, return_diagnostics=True) for sampler in self.samplers
        ]
        return drawn, [coupling(self.network(x), y) for coupling in self.couplings]


class Steered(nn.Module):
    """The samplers of a diffusion model."""

    def __init__(self) -> None:
        super().__init__()
        from diffusion import sampling
        from diffusion.utils import get_spliced_ddpm_cosine_schedule

        self.network, self.sampling, self.schedule = (
            nn.Conv2d(3, 3, 1),
            sampling,
            get_spliced_ddpm_cosine_schedule,
        )

    def denoise(self, x: torch.Tensor, t: torch.Tensor, **_: Any) -> torch.Tensor:
        return self.network(x) * t[:, None, None, None]

    def forward(self, x: torch.Tensor) -> Any:
        steps = self.schedule(torch.linspace(1, 0, 5, device=x.device)[:-1])
        plain = self.sampling.sample(self.denoise, x, steps, 1.0, {})
        linear = self.sampling.plms_sample(self.denoise, x, steps, {})
        return plain, linear, self.sampling.reverse_sample(self.denoise, x, steps, {})


class Streamed(nn.Module):
    """A byte model's connector, whose stream ends by confidence, and its experts."""

    def __init__(self) -> None:
        super().__init__()
        from physis_lm.torch_backend.moe import MoEFeedForward
        from physis_lm.torch_backend.sconm import SConM, confidence_threshold_stream

        self.connector, self.stream = SConM(8, 4, 16, 0.1), confidence_threshold_stream
        self.experts, self.bytes = MoEFeedForward(8, 16, 0.1), nn.Parameter(torch.randn(256, 8))

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> Any:
        return self.experts(x), self.stream(self.connector, x, z, self.bytes, 1.0, 2, 0.5)


class Routed(nn.Module):
    """A model's experts and its positions."""

    def __init__(self) -> None:
        super().__init__()
        from olm.nn.embeddings.positional.rope import (
            PartialRotaryPositionalEmbedding,
            ScaledRotaryPositionalEmbedding,
        )
        from olm.nn.feedforward.moe_base import MoEFeedForwardBase

        self.experts = MoEFeedForwardBase(8, Expert, 4, 1)
        self.positions = nn.ModuleList(
            [PartialRotaryPositionalEmbedding(8, max_seq_len=16)]
            + [
                ScaledRotaryPositionalEmbedding(8, 16, scaling_type=kind, scaling_factor=2.0)
                for kind in ("ntk", "yarn")
            ]
        )

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> Any:
        return self.experts(x), [rotary(x[:, :, None], positions) for rotary in self.positions]


class Expert(nn.Module):
    """An expert."""

    def __init__(self, embed_dim: int, **_: Any) -> None:
        super().__init__()
        self.network = nn.Linear(embed_dim, embed_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)


class Estimated(nn.Module):
    """The parts of a model that estimates translations."""

    def __init__(self) -> None:
        super().__init__()
        from kiwi.utils import tensors

        self.network, self.parts = nn.LSTM(4, 4, batch_first=True), tensors

    def forward(self, words: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor) -> Any:
        states, _ = self.parts.apply_packed_sequence(self.network, words, lengths)
        mask = self.parts.sequence_mask(lengths)
        kept = self.parts.unmask(states, mask)
        return kept, self.parts.replace_token(target, 1, 0), self.parts.convolve_tensor(target, 3)


class Pooled(nn.Module):
    """Spans that are pooled by where they are."""

    def __init__(self) -> None:
        super().__init__()
        from pie_models.models.components.pooler import AtIndexPooler, SpanMaxPooler

        self.network, self.at, self.greatest = nn.Linear(8, 8), AtIndexPooler(8, 2), SpanMaxPooler(8, 2)

    def forward(self, states: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> Any:
        states = self.network(states)
        return self.at(states, starts), self.greatest(states, starts, ends)


class Waved(nn.Module):
    """A vocoder that draws sample by sample."""

    def __init__(self) -> None:
        super().__init__()
        import numpy as np
        from univoc.model import Vocoder

        np.int = int  # which older ones have
        self.model = Vocoder(4, 4, 4, 8, 8, 4, 2, 100)

    def forward(self, sound: torch.Tensor, mels: torch.Tensor) -> Any:
        return self.model(sound, mels), self.model.generate(mels)[0]


class Discrete(nn.Module):
    """A policy of several choices."""

    def __init__(self) -> None:
        super().__init__()
        from agnes.common.distributions import MultiDiscrete

        self.network, self.kind = nn.Linear(4, 5), MultiDiscrete

    def forward(self, observations: torch.Tensor) -> Any:
        distribution = self.kind(self.network(observations), [2, 3])
        actions = distribution.sample()
        return actions, distribution.log_prob(actions), distribution.entropy()


class Doubled(nn.Module):
    """The losses of voices that teach one another."""

    def __init__(self) -> None:
        super().__init__()
        from speakerlab.loss.margin_loss import AddMarginLoss, ArcMarginLoss
        from speakerlab.models.eres2net.pooling_layers import ASTP, TSTP

        self.network = nn.Linear(8, 5)
        self.losses, self.pools = [ArcMarginLoss(), AddMarginLoss()], nn.ModuleList([TSTP(), ASTP(8, 4)])

    def forward(self, frames: torch.Tensor, labels: torch.Tensor) -> Any:
        pooled = [pool(frames) for pool in self.pools]
        cosine = nn.functional.normalize(self.network(frames.mean(-1)))
        return pooled, [loss(cosine, labels) for loss in self.losses]
