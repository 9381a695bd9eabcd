"""Models that call functions of packages, for those of `benchmarks.tiny_strangers_sixth` that have none themselves.

The linter reads this file too: what a package's functions get is known where they are called.
"""

from typing import Any

import torch
from torch import nn


class TagDecoder(nn.Module):
    """The best tags of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        from TorchCRF import CRF

        self.crf = CRF(4, use_gpu=False)

    def forward(self, emissions: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.crf.viterbi_decode(emissions, mask)


class PartialTags(nn.Module):
    """The best tags of a sequence, and how probable each is."""

    def __init__(self) -> None:
        super().__init__()
        from pytorch_partial_crf import PartialCRF

        self.crf = PartialCRF(4)

    def forward(self, emissions: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.crf.viterbi_decode(emissions, mask), self.crf.marginal_probabilities(emissions, mask)


class TreeDecoder(nn.Module):
    """The best trees of a sentence, projective or not."""

    def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> Any:
        from diaparser.utils.alg import eisner, mst

        return eisner(scores, mask), mst(scores, mask)


class PartialAreas(nn.Module):
    """Losses for the partial area under a curve."""

    def __init__(self) -> None:
        super().__init__()
        from libauc.losses.auc import AveragePrecisionLoss, pAUC_DRO_Loss

        self.partial = pAUC_DRO_Loss(data_len=8, device="cpu")
        self.precision = AveragePrecisionLoss(data_len=8, device="cpu")

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> Any:
        index = torch.arange(scores.shape[0])
        return self.partial(scores, labels, index), self.precision(scores, labels, index)


class Quadratic(nn.Module):
    """The solution of a quadratic program."""

    def forward(self, p: torch.Tensor) -> torch.Tensor:
        from qpth.qp import QPFunction

        none = torch.empty(0)
        bounds = torch.cat([torch.eye(3), -torch.eye(3)])
        return QPFunction(verbose=-1)(2 * torch.eye(3), p, bounds, torch.ones(6), none, none)


class Minimum(nn.Module):
    """Minima of a function of the distance from some points."""

    def forward(self, x: torch.Tensor) -> Any:
        from torchmin import minimize

        def objective(point: torch.Tensor) -> torch.Tensor:
            return ((point - x) ** 2).sum() + (point**4).sum()

        start = torch.zeros_like(x)
        return (
            minimize(objective, start, method="bfgs", max_iter=3).x,
            minimize(objective, start, method="cg", max_iter=3).x,
            minimize(objective, start, method="newton-cg", max_iter=3).x,
            minimize(objective, start, method="trust-exact", max_iter=3).x,
        )


class LeastSquares(nn.Module):
    """A fit by least squares."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torchmin import least_squares

        return least_squares(lambda point: point**2 - x, torch.ones_like(x), max_nfev=4).x


class Rotations(nn.Module):
    """Rotations in one form after another."""

    def forward(self, matrices: torch.Tensor, vectors: torch.Tensor) -> Any:
        import roma

        rotations = roma.special_procrustes(matrices)
        quaternions = roma.rotmat_to_unitquat(rotations)
        turned = roma.quat_action(quaternions, vectors)
        between = roma.unitquat_slerp(quaternions[:1], quaternions[1:2], torch.linspace(0, 1, 3))
        return (
            roma.unitquat_to_rotvec(quaternions),
            turned,
            between,
            roma.rigid_points_registration(vectors, turned),
        )


class Transport(nn.Module):
    """The cost of transport between points."""

    def __init__(self) -> None:
        super().__init__()
        from geomloss import SamplesLoss

        self.sinkhorn = SamplesLoss("sinkhorn", blur=0.1, backend="tensorized")
        self.energy = SamplesLoss("energy", backend="tensorized")

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.sinkhorn(x, y), self.energy(x, y)


class StateEstimate(nn.Module):
    """The state of a system by an unscented Kalman filter."""

    def __init__(self) -> None:
        super().__init__()
        from pypose.module import NLS, UKF

        class System(NLS):
            def state_transition(
                self, state: torch.Tensor, force: torch.Tensor, t: Any = None
            ) -> torch.Tensor:
                return state + 0.1 * torch.sin(state) + force

            def observation(self, state: torch.Tensor, force: torch.Tensor, t: Any = None) -> torch.Tensor:
                return state * 0.5 + force

        self.filter = UKF(System(), Q=torch.eye(2) * 0.1, R=torch.eye(2) * 0.1)

    def forward(self, x: torch.Tensor, y: torch.Tensor, u: torch.Tensor) -> Any:
        return self.filter(x, y, u, torch.eye(2))


class Alignment(nn.Module):
    """The pose that brings points onto others."""

    def __init__(self) -> None:
        super().__init__()
        from pypose.module import ICP

        self.icp = ICP()

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.icp(source, target).tensor()


class Integral(nn.Module):
    """Integrals of a function with a parameter."""

    def forward(self, scale: torch.Tensor) -> Any:
        from torchquad import MonteCarlo, Simpson

        def integrand(points: torch.Tensor) -> torch.Tensor:
            return torch.sin(points * scale).sum(dim=1)

        domain = [[0.0, 1.0], [0.0, 1.0]]
        return (
            Simpson().integrate(integrand, dim=2, N=49, integration_domain=domain, backend="torch"),
            MonteCarlo().integrate(integrand, dim=2, N=64, integration_domain=domain, backend="torch"),
        )


class Trains(nn.Module):
    """A tensor as a train of small ones."""

    def forward(self, data: torch.Tensor) -> Any:
        import tntorch

        train = tntorch.Tensor(data, ranks_tt=2)
        rounded = tntorch.round_tt(train + train, eps=1e-3)
        return rounded.torch(), tntorch.norm(train)


class Skin(nn.Module):
    """Joints that follow a pose."""

    def forward(self, pose: torch.Tensor) -> Any:
        from smplx.lbs import batch_rigid_transform, batch_rodrigues

        rotations = batch_rodrigues(pose.view(-1, 3)).view(1, -1, 3, 3)
        joints = torch.arange(9.0, device=pose.device).view(1, 3, 3)
        return batch_rigid_transform(rotations, joints, torch.tensor([-1, 0, 1]))


class Spikes(nn.Module):
    """Neurons that spike one at a time."""

    def __init__(self) -> None:
        super().__init__()
        from bindsnet.network.nodes import DiehlAndCookNodes

        self.nodes = DiehlAndCookNodes(n=8, traces=True)
        self.nodes.compute_decays(1.0)
        self.nodes.set_batch_size(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.nodes(x * 100)
        return self.nodes.s


class LeakySpikes(nn.Module):
    """Neurons that leak."""

    def __init__(self) -> None:
        super().__init__()
        from bindsnet.network.nodes import LIFNodes

        self.nodes = LIFNodes(n=8, traces=True)
        self.nodes.compute_decays(1.0)
        self.nodes.set_batch_size(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.nodes(x * 100)
        return self.nodes.s


class Dispersion(nn.Module):
    """The energy of dispersion of a molecule."""

    def __init__(self) -> None:
        super().__init__()
        from torch_dftd.nn.dftd2_module import DFTD2Module

        self.energy = DFTD2Module({"s6": 1.0, "rs6": 1.1, "s18": 0.0, "alp": 20.0})

    def forward(self, Z: torch.Tensor, pos: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.energy.calc_energy(Z, pos, edge_index)


class LinearSolve(nn.Module):
    """The solution of a linear system by conjugate gradients."""

    def forward(self, b: torch.Tensor) -> torch.Tensor:
        from torchopt.linear_solve import solve_cg

        matrix = torch.diag(torch.arange(1.0, 4.0, device=b.device))
        return solve_cg(maxiter=5)(lambda x: matrix @ x, b)


class Boxes(nn.Module):
    """Which prior boxes stand for the true ones."""

    def forward(self, truth: torch.Tensor) -> Any:
        from retinaface.box_utils import decode, encode, jaccard, log_sum_exp

        priors = torch.rand(6, 4, device=truth.device) * 0.5 + 0.25
        overlaps = jaccard(truth, priors)
        matched = encode(truth, priors[:2], [0.1, 0.2])
        return overlaps, decode(matched, priors[:2], [0.1, 0.2]), log_sum_exp(matched)


class FastTags(nn.Module):
    """The best tags of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        from fastNLP.modules.torch.decoder.crf import ConditionalRandomField

        self.crf = ConditionalRandomField(4)

    def forward(self, emissions: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.crf.viterbi_decode(emissions, mask, unpad=True)


class LengthMasks(nn.Module):
    """Masks of lengths."""

    def forward(self, lengths: torch.Tensor) -> torch.Tensor:
        from fastNLP.core.utils.seq_len_to_mask import seq_len_to_mask

        return seq_len_to_mask(lengths)


class SequenceLosses(nn.Module):
    """Losses of sequences of unequal lengths."""

    def forward(self, logits: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> Any:
        from texar.torch import losses

        return (
            losses.sequence_sparse_softmax_cross_entropy(labels, logits, lengths),
            losses.sequence_entropy_with_logits(logits, sequence_length=lengths),
            losses.discount_reward(torch.rand(2, 6), lengths, discount=0.9),
        )


class Labels(nn.Module):
    """The best labels of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        from hanlp.layers.crf.crf import CRF

        self.crf = CRF(4)

    def forward(self, emissions: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.crf.decode(emissions, mask)


class Trajectories(nn.Module):
    """Observations of episodes, each by itself."""

    def forward(self, observations: torch.Tensor, dones: torch.Tensor) -> Any:
        from rsl_rl.utils import split_and_pad_trajectories, unpad_trajectories

        trajectories, masks = split_and_pad_trajectories(observations, dones)
        return unpad_trajectories(trajectories, masks)


class Segments(nn.Module):
    """Losses of segmented volumes."""

    def __init__(self) -> None:
        super().__init__()
        from segmentation_models_pytorch_3d import losses

        self.dice = losses.DiceLoss("multiclass")
        self.focal = losses.FocalLoss("multiclass")
        self.lovasz = losses.LovaszLoss("multiclass")

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> Any:
        return self.dice(logits, target), self.focal(logits, target), self.lovasz(logits, target)


class Rotary(nn.Module):
    """Positions by rotation."""

    def __init__(self) -> None:
        super().__init__()
        from timesfm.torch.transformer import RotaryPositionalEmbedding

        self.rotary = RotaryPositionalEmbedding(embedding_dims=8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rotary(x)
