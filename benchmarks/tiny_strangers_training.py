"""Models that optimizers change, for packages of `benchmarks.tiny_strangers_seventh` that have none themselves.

The linter reads this file too: what a package's functions get is known where they are called.
"""

import torch
from torch import nn


class Prodigy(nn.Module):
    """Two steps of Prodigy."""

    def __init__(self) -> None:
        super().__init__()
        from prodigyopt import Prodigy

        self.layer = nn.Linear(4, 3)
        self.optimizer = Prodigy(self.layer.parameters(), weight_decay=0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            for _ in range(2):
                loss = self.layer(x).pow(2).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
        return loss


class Adaptation(nn.Module):
    """A step of each optimizer that estimates its rate."""

    def __init__(self) -> None:
        super().__init__()
        from dadaptation import DAdaptAdam, DAdaptLion, DAdaptSGD

        self.layer = nn.Linear(4, 3)
        self.adam = DAdaptAdam(self.layer.parameters())
        self.sgd = DAdaptSGD(self.layer.parameters())
        self.lion = DAdaptLion(self.layer.parameters())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            loss = self.layer(x).pow(2).mean()
            loss.backward()
            self.adam.step()
            self.sgd.step()
            self.lion.step()
        return loss


class ScheduleFree(nn.Module):
    """A step of each optimizer without a schedule."""

    def __init__(self) -> None:
        super().__init__()
        from schedulefree import AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree

        self.layer = nn.Linear(4, 3)
        self.adam = AdamWScheduleFree(self.layer.parameters(), foreach=False)
        self.radam = RAdamScheduleFree(self.layer.parameters(), foreach=False)
        self.sgd = SGDScheduleFree(self.layer.parameters(), lr=0.1, foreach=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.adam.train()
        self.radam.train()
        self.sgd.train()
        with torch.enable_grad():
            loss = self.layer(x).pow(2).mean()
            loss.backward()
            self.adam.step()
            self.radam.step()
            self.sgd.step()
        self.adam.eval()
        return loss


class Came(nn.Module):
    """A step of CAME."""

    def __init__(self) -> None:
        super().__init__()
        from came_pytorch import CAME

        self.layer = nn.Linear(4, 3)
        self.optimizer = CAME(self.layer.parameters(), lr=1e-3, betas=(0.9, 0.999, 0.9999))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            loss = self.layer(x).pow(2).mean()
            loss.backward()
            self.optimizer.step()
        return loss


class Adan(nn.Module):
    """A step of Adan."""

    def __init__(self) -> None:
        super().__init__()
        from adan_pytorch import Adan

        self.layer = nn.Linear(4, 3)
        self.optimizer = Adan(self.layer.parameters(), lr=1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            loss = self.layer(x).pow(2).mean()
            loss.backward()
            self.optimizer.step()
        return loss


class ManyOptimizers(nn.Module):
    """A step of each of many optimizers."""

    def __init__(self) -> None:
        super().__init__()
        import torch_optimizer

        self.layer = nn.Linear(4, 3)
        weights = list(self.layer.parameters())
        self.lamb = torch_optimizer.Lamb(weights)
        self.lars = torch_optimizer.LARS(weights, lr=0.1)
        self.swats = torch_optimizer.SWATS(weights)
        self.adamp = torch_optimizer.AdamP(weights)
        self.radam = torch_optimizer.RAdam(weights)
        self.yogi = torch_optimizer.Yogi(weights)
        self.novograd = torch_optimizer.NovoGrad(weights)
        self.diffgrad = torch_optimizer.DiffGrad(weights)
        self.adabound = torch_optimizer.AdaBound(weights)
        self.adamod = torch_optimizer.AdaMod(weights)
        self.aggmo = torch_optimizer.AggMo(weights)
        self.qhadam = torch_optimizer.QHAdam(weights)
        self.madgrad = torch_optimizer.MADGRAD(weights)
        self.apollo = torch_optimizer.Apollo(weights)
        self.shampoo = torch_optimizer.Shampoo(weights)
        self.adafactor = torch_optimizer.Adafactor(weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            loss = self.layer(x).pow(2).mean()
            loss.backward()
        self.lamb.step()
        self.lars.step()
        self.swats.step()
        self.adamp.step()
        self.radam.step()
        self.yogi.step()
        self.novograd.step()
        self.diffgrad.step()
        self.adabound.step()
        self.adamod.step()
        self.aggmo.step()
        self.qhadam.step()
        self.madgrad.step()
        self.apollo.step()
        self.shampoo.step()
        self.adafactor.step()
        return loss


class Kron(nn.Module):
    """A step of PSGD."""

    def __init__(self) -> None:
        super().__init__()
        from kron_torch import Kron

        self.layer = nn.Linear(4, 3)
        self.optimizer = Kron(self.layer.parameters())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            loss = self.layer(x).pow(2).mean()
            loss.backward()
            self.optimizer.step()
        return loss


class ParameterFree(nn.Module):
    """A step of each optimizer without a rate."""

    def __init__(self) -> None:
        super().__init__()
        from parameterfree import COCOB, KT

        self.layer = nn.Linear(4, 3)
        self.cocob, self.kt = COCOB(self.layer.parameters()), KT(self.layer.parameters())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            loss = self.layer(x).pow(2).mean()
            loss.backward()
            self.cocob.step()
            self.kt.step()
        return loss


class SecondOrder(nn.Module):
    """A step of each optimizer of the second order."""

    def __init__(self) -> None:
        super().__init__()
        from OPTAMI.second_order import CubicRegularizedNewton, DampedNewton

        self.weight = nn.Parameter(torch.ones(3))
        self.cubic, self.damped = CubicRegularizedNewton([self.weight]), DampedNewton([self.weight])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            self.cubic.zero_grad()
            return (self.weight * x).pow(4).sum()

        with torch.enable_grad():
            self.cubic.step(closure)
            self.damped.step(closure)
        return self.weight
