"""Models that call functions, for packages of `benchmarks.tiny_strangers_seventh` that have none themselves.

The linter reads this file too: what a package's functions get is known where they are called.
"""

from typing import Any

import torch
from torch import nn


class Filter(nn.Module):
    """A track of noisy positions."""

    def forward(self, positions: torch.Tensor) -> Any:
        from torch_kf import GaussianState, KalmanFilter

        eye = torch.eye(2, device=positions.device)
        kalman = KalmanFilter(eye, eye, 0.1 * eye, 0.2 * eye)
        state = GaussianState(positions[0], eye.expand(positions.shape[1], 2, 2))
        filtered = kalman.filter(state, positions[1:], return_all=True)
        smoothed = kalman.rts_smooth(filtered)
        return smoothed.mean, kalman.predict(state).covariance


class Median(nn.Module):
    """The geometric median of points."""

    def forward(self, points: torch.Tensor) -> Any:
        from torch_geometric_median import geometric_median

        return geometric_median(points).median


class Clusters(nn.Module):
    """Points in clusters."""

    def forward(self, points: torch.Tensor) -> Any:
        from kmeans_pytorch import kmeans, kmeans_predict

        identifiers, centers = kmeans(points, num_clusters=2)
        return identifiers, kmeans_predict(points, centers)


class FastClusters(nn.Module):
    """Points in clusters."""

    def forward(self, points: torch.Tensor) -> Any:
        from fast_pytorch_kmeans import KMeans

        return KMeans(n_clusters=2, max_iter=4, mode="euclidean").fit_predict(points)


class GaussianMixture(nn.Module):
    """Mixtures that are fitted to points."""

    def __init__(self) -> None:
        super().__init__()
        from pomegranate.distributions import Exponential, Normal
        from pomegranate.gmm import GeneralMixtureModel

        self.mixture = GeneralMixtureModel(
            [Normal(covariance_type="diag"), Normal(covariance_type="diag")], max_iter=3
        )
        self.normal, self.exponential = Normal(covariance_type="diag"), Exponential()

    def forward(self, points: torch.Tensor) -> Any:
        self.mixture.fit(points)
        self.normal.fit(points)
        self.exponential.fit(points.abs())
        return self.mixture.predict_proba(points), self.normal.log_probability(points)


class Chain(nn.Module):
    """A hidden Markov model."""

    def __init__(self) -> None:
        super().__init__()
        from pomegranate.distributions import Categorical
        from pomegranate.hmm import DenseHMM

        parts = [Categorical([[0.5, 0.3, 0.2]]), Categorical([[0.1, 0.1, 0.8]])]
        self.model = DenseHMM(parts, edges=[[0.8, 0.2], [0.3, 0.7]], starts=[0.5, 0.5], max_iter=2)

    def forward(self, symbols: torch.Tensor) -> Any:
        return self.model.predict_proba(symbols), self.model.log_probability(symbols)


class Roots(nn.Module):
    """Roots, fixed points, minima, interpolation."""

    def forward(self, y: torch.Tensor) -> Any:
        from xitorch.interpolate import Interp1D
        from xitorch.optimize import equilibrium, minimize, rootfinder

        def difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x**3 + x - y

        def contraction(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return 0.5 * torch.cos(x) + y * 0.1

        def energy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return ((x - y) ** 2).sum()

        start = torch.zeros_like(y)
        positions = torch.linspace(0, 1, y.shape[0], dtype=y.dtype, device=y.device)
        return (
            rootfinder(difference, start, params=(y,), method="broyden1"),
            equilibrium(contraction, start, params=(y,)),
            minimize(energy, start, params=(y,), method="gd", maxiter=5, step=0.1),
            Interp1D(positions, y, method="cspline")(positions[:-1] + 0.1),
        )


class Matching(nn.Module):
    """Matchings of two graphs."""

    def forward(self, scores: torch.Tensor, affinity: torch.Tensor) -> Any:
        import pygmtools

        soft = pygmtools.sinkhorn(scores, backend="pytorch")
        hard = pygmtools.hungarian(scores, backend="pytorch")
        walk = pygmtools.rrwm(affinity, n1=3, n2=3, max_iter=3, backend="pytorch")
        spectral = pygmtools.sm(affinity, n1=3, n2=3, max_iter=3, backend="pytorch")
        return soft, hard, walk, spectral


class Transport(nn.Module):
    """Plans and costs of transport."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        import ot

        costs = ot.dist(x, y)
        a = torch.ones_like(x[:, 0]) / x.shape[0]
        b = torch.ones_like(y[:, 0]) / y.shape[0]
        return (
            ot.sinkhorn(a, b, costs, 1.0, numItermax=5),
            ot.bregman.sinkhorn_log(a, b, costs, 1.0, numItermax=5),
            ot.bregman.sinkhorn_stabilized(a, b, costs, 1.0, numItermax=5),
            ot.wasserstein_1d(x[:, 0], y[:, 0]),
            ot.sliced_wasserstein_distance(x, y, n_projections=3),
            ot.utils.proj_simplex(x[0]),
        )


class Classification(nn.Module):
    """Metrics of classification."""

    def forward(self, scores: torch.Tensor, labels: torch.Tensor, binary: torch.Tensor) -> Any:
        from torcheval.metrics import functional

        return (
            functional.multiclass_accuracy(scores, labels),
            functional.multiclass_confusion_matrix(scores, labels, 4),
            functional.multiclass_f1_score(scores, labels, num_classes=4, average="macro"),
            functional.binary_auroc(scores[:, 0], binary),
            functional.binary_auprc(scores[:, 0], binary),
            functional.binary_precision_recall_curve(scores[:, 0], binary),
            functional.r2_score(scores[:, 0], scores[:, 1]),
            functional.hit_rate(scores, labels, k=2),
            functional.peak_signal_noise_ratio(scores, scores + 1),
            functional.retrieval_precision(scores[:, 0], binary, k=2),
        )


class Ranking(nn.Module):
    """Metrics of ranking."""

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> Any:
        from ranking_metrics_torch.avg_precision import avg_precision_at
        from ranking_metrics_torch.cumulative_gain import ndcg_at

        ks = torch.tensor([1, 2], device=scores.device)
        return (
            avg_precision_at(ks, scores, labels),
            ndcg_at(ks, scores, labels),
        )


class Levels(nn.Module):
    """Losses and labels of ordered classes."""

    def forward(self, logits: torch.Tensor, levels: torch.Tensor, labels: torch.Tensor) -> Any:
        from coral_pytorch.dataset import corn_label_from_logits, proba_to_label
        from coral_pytorch.losses import coral_loss, corn_loss

        return (
            coral_loss(logits, levels),
            corn_loss(logits, labels, num_classes=4),
            corn_label_from_logits(logits),
            proba_to_label(torch.sigmoid(logits)),
        )


class Samples(nn.Module):
    """Values between the pixels of an image."""

    def forward(self, image: torch.Tensor, coordinates: torch.Tensor) -> Any:
        from torch_image_interpolation import insert_into_image_2d, sample_image_2d

        sampled = sample_image_2d(image, coordinates)
        return sampled, insert_into_image_2d(sampled, coordinates, torch.zeros_like(image))


class Cosines(nn.Module):
    """Cosine transforms."""

    def forward(self, x: torch.Tensor) -> Any:
        import torch_dct

        return torch_dct.idct_2d(torch_dct.dct_2d(x)), torch_dct.dct(x, norm="ortho")


class Resized(nn.Module):
    """A larger image."""

    def forward(self, image: torch.Tensor) -> Any:
        from spline_resize import resize

        return resize(image, size=(8, 8, 8))


class Hyperbolic(nn.Module):
    """A layer in hyperbolic space."""

    def __init__(self) -> None:
        super().__init__()
        from hypll.manifolds.poincare_ball import Curvature, PoincareBall
        from hypll.nn import HLinear, HReLU

        self.manifold = PoincareBall(c=Curvature(requires_grad=True))
        self.linear, self.relu = HLinear(4, 3, manifold=self.manifold), HReLU(manifold=self.manifold)

    def forward(self, x: torch.Tensor) -> Any:
        from hypll.tensors import TangentTensor

        tangents = TangentTensor(data=x, man_dim=1, manifold=self.manifold)
        return self.relu(self.linear(self.manifold.expmap(tangents))).tensor


class Boxes(nn.Module):
    """Losses of rotated boxes."""

    def forward(self, predicted: torch.Tensor, true: torch.Tensor) -> Any:
        from mgiou import MGIoU2D, MGIoU2DPlus

        return MGIoU2D()(predicted, true), MGIoU2DPlus()(
            predicted[..., :4].view(3, 2, 2), true[..., :4].view(3, 2, 2)
        )


class Splines(nn.Module):
    """Values between the pixels of an image."""

    def forward(self, image: torch.Tensor, grid: torch.Tensor) -> Any:
        import interpol

        return interpol.grid_pull(image, grid, interpolation=3), interpol.spline_coeff_nd(
            image, interpolation=3
        )


class Detections(nn.Module):
    """The best of many boxes."""

    def forward(self, predictions: torch.Tensor, x: torch.Tensor) -> Any:
        from pytorchyolo.utils.utils import bbox_iou, non_max_suppression, xywh2xyxy

        return non_max_suppression(predictions), bbox_iou(x[:1], x), xywh2xyxy(x)


class Pruned(nn.Module):
    """Losses of triplets."""

    def forward(self, x: torch.Tensor) -> Any:
        from triplettorch import AllTripletMiner, HardNegativeTripletMiner

        labels = torch.tensor([0, 0, 1, 1], device=x.device)
        return AllTripletMiner(0.5)(labels, x), HardNegativeTripletMiner(0.5)(labels, x)


class Trees(nn.Module):
    """Tags of sequences."""

    def __init__(self) -> None:
        super().__init__()
        from bi_lstm_crf.model.crf import CRF

        self.crf = CRF(8, 4)

    def forward(self, features: torch.Tensor, tags: torch.Tensor, masks: torch.Tensor) -> Any:
        return self.crf(features, masks), self.crf.loss(features, tags, masks)


class Registration(nn.Module):
    """An image that is laid over another."""

    def forward(self, moving: torch.Tensor, static: torch.Tensor) -> Any:
        from torchreg import AffineRegistration

        registration = AffineRegistration(scales=(2, 1), iterations=(2, 2), verbose=False)
        with torch.enable_grad():
            return registration(moving, static)


class Rotations(nn.Module):
    """Angles of poses."""

    def forward(self, poses: torch.Tensor) -> Any:
        from sixdrepnet.utils import (
            compute_euler_angles_from_rotation_matrices,
            compute_rotation_matrix_from_ortho6d,
        )

        matrices = compute_rotation_matrix_from_ortho6d(poses)
        return compute_euler_angles_from_rotation_matrices(matrices)
