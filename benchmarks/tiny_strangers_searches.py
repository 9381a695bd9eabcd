"""Models that search for what suits, for packages of `benchmarks.tiny_strangers_seventh` that have none themselves.

The linter reads this file too: what a package's functions get is known where they are called.
"""

from typing import Any

import torch
from torch import nn


class Attacks(nn.Module):
    """Images that mislead a network."""

    def __init__(self) -> None:
        super().__init__()
        import torchattacks

        self.network = nn.Sequential(nn.Flatten(), nn.Linear(48, 4))
        self.pgd = torchattacks.PGD(self.network, steps=2)
        self.cw = torchattacks.CW(self.network, steps=2)
        self.deepfool = torchattacks.DeepFool(self.network, steps=2)
        self.fgsm = torchattacks.FGSM(self.network)
        self.difgsm = torchattacks.DIFGSM(self.network, steps=2)
        self.jitter = torchattacks.Jitter(self.network, steps=2)
        self.sparse = torchattacks.SparseFool(self.network, steps=2)
        self.pgdl2 = torchattacks.PGDL2(self.network, steps=2)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        with torch.enable_grad():
            return (
                self.pgd(images, labels),
                self.cw(images, labels),
                self.deepfool(images, labels),
                self.fgsm(images, labels),
                self.jitter(images, labels),
                self.pgdl2(images, labels),
            )


class Control(nn.Module):
    """An action by sampled paths."""

    def __init__(self) -> None:
        super().__init__()
        from pytorch_mppi import MPPI

        def dynamics(state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            return state + 0.1 * action

        def cost(state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            return (state**2).sum(-1) + 0.1 * (action**2).sum(-1)

        self.controller = MPPI(dynamics, cost, 2, torch.eye(2), num_samples=6, horizon=3)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return self.controller.command(state)


class Quadratic(nn.Module):
    """Actions by quadratic costs."""

    def __init__(self) -> None:
        super().__init__()
        from mpc import mpc

        self.control = mpc.MPC(
            2, 1, 3, u_lower=-1.0, u_upper=1.0, lqr_iter=2, verbose=-1, exit_unconverged=False
        )

    def forward(self, state: torch.Tensor, F: torch.Tensor) -> Any:
        from mpc.mpc import LinDx, QuadCost

        batch = state.shape[0]
        C = torch.eye(3, device=state.device).expand(3, batch, 3, 3)
        c = torch.zeros(3, batch, 3, device=state.device)
        return self.control(state, QuadCost(C, c), LinDx(F))


class FewShot(nn.Module):
    """Classes by a few examples."""

    def __init__(self) -> None:
        super().__init__()
        from easyfsl.methods import TIM, PrototypicalNetworks, SimpleShot

        self.prototypes = PrototypicalNetworks(nn.Flatten())
        self.simple = SimpleShot(nn.Flatten())
        self.tim = TIM(nn.Flatten(), fine_tuning_steps=2)

    def forward(self, support: torch.Tensor, labels: torch.Tensor, query: torch.Tensor) -> Any:
        self.prototypes.process_support_set(support, labels)
        self.simple.process_support_set(support, labels)
        return self.prototypes(query), self.simple(query)


class Embedding(nn.Module):
    """Points in two dimensions that keep their neighbors."""

    def forward(self, points: torch.Tensor) -> Any:
        import pymde

        edges = torch.tensor([[0, 1], [1, 2], [2, 3], [0, 3]], device=points.device)
        problem = pymde.MDE(4, 2, edges, pymde.penalties.Quadratic(torch.ones(4)), pymde.Centered())
        return problem.embed(max_iter=3)
