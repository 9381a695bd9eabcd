"""Models that call functions of packages, for those of `benchmarks.tiny_strangers_fourth` that have none themselves.

The linter reads this file too: what a package's functions get is known where they are called.
"""

from typing import Any

import torch
from torch import nn


class MatrixTrees(nn.Module):
    """The partition and the best of non-projective trees."""

    def forward(self, scores: torch.Tensor, lens: torch.Tensor) -> Any:
        from supar.structs import MatrixTree

        tree = MatrixTree(scores, lens)
        return tree.log_partition, tree.argmax


class ProjectiveTrees(nn.Module):
    """The partition and the best of projective trees."""

    def forward(self, scores: torch.Tensor, lens: torch.Tensor) -> Any:
        from supar.structs import DependencyCRF

        tree = DependencyCRF(scores, lens)
        return tree.log_partition, tree.argmax


class Constituents(nn.Module):
    """The partition and the best of constituency trees."""

    def forward(self, scores: torch.Tensor, lens: torch.Tensor) -> Any:
        from supar.structs import ConstituencyCRF

        tree = ConstituencyCRF(scores, lens)
        return tree.log_partition, tree.argmax


class Distances(nn.Module):
    """Distances of points on a manifold from those that a tangent leads to."""

    def __init__(self, name: str) -> None:
        super().__init__()
        from geoopt import manifolds

        kinds = {
            "PoincareBall": manifolds.PoincareBall,
            "Sphere": manifolds.Sphere,
            "Lorentz": manifolds.Lorentz,
        }
        self.manifold = kinds[name]()

    def forward(self, x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        point = self.manifold.projx(x)
        return self.manifold.dist(point, self.manifold.expmap(point, self.manifold.proju(point, u)))


class Rotated(nn.Module):
    """Queries as an attention layer rotates them."""

    def __init__(self) -> None:
        super().__init__()
        from rotary_embedding_torch import RotaryEmbedding

        self.rotary = RotaryEmbedding(dim=8)

    def forward(self, queries: torch.Tensor) -> torch.Tensor:
        return self.rotary.rotate_queries_or_keys(queries)


class Posterior(nn.Module):
    """What a Gaussian process expects at some points."""

    def __init__(self, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        super().__init__()
        from botorch.models import SingleTaskGP

        self.process = SingleTaskGP(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.process.posterior(x).mean
