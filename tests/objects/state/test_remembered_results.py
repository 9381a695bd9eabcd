"""What the user's functions remember (`functools.lru_cache`) crosses no trace."""

import contextlib
import functools

import pytest
import torch

import tpuport
from tpuport import ShardingRules


@functools.lru_cache
def _mask(length: int, device: torch.device) -> torch.Tensor:
    return torch.ones(length, length, device=device).tril()


@functools.cache
def _model_of_all() -> torch.nn.Linear:
    """What is to be made once."""
    return torch.nn.Linear(2, 2)


class Remembering(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.scales = functools.lru_cache(self._scales)

    def _scales(self, length: int, device: torch.device) -> dict[str, torch.Tensor]:
        return {"scale": torch.arange(length, device=device) * self.linear.bias.sum()}

    @functools.lru_cache  # noqa: B019 - as people write it
    def positions(self, length: int, device: torch.device) -> list[torch.Tensor]:
        return [torch.arange(length, device=device) / 2]

    @staticmethod
    @functools.lru_cache
    def offsets(length: int, device: torch.device) -> torch.Tensor:
        return torch.ones(length, 1, device=device)

    @torch.no_grad()
    @functools.lru_cache  # noqa: B019
    def factors(self, length: int, device: torch.device) -> torch.Tensor:
        return torch.full((length, 1), 2.0, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[0]
        x = x * self.factors(length, x.device) + self.offsets(length, x.device)
        scale = self.scales(length, x.device)["scale"] + self.positions(length, x.device)[0]
        assert _model_of_all() is _model_of_all()
        return _mask(length, x.device) @ self.linear(x) * scale[:, None]


@torch.no_grad()
@pytest.mark.parametrize("fails", [False, True])
def test_a_cache_of_the_users_keeps_nothing_of_a_trace(fails: bool) -> None:
    model = Remembering()
    x = torch.randn(4, 3)
    expected = model(x)
    ported = tpuport.port(Remembering())
    ported.load_state_dict(model.state_dict())
    once = _model_of_all()

    def call(x: torch.Tensor) -> torch.Tensor:
        y = ported(x)
        if fails:
            raise ZeroDivisionError
        return y

    with contextlib.suppress(ZeroDivisionError):
        tpuport.compile(call)(x)
    ShardingRules.infer(ported, x)
    for function in (ported, tpuport.compile(ported), tpuport.compile(lambda x: ported(x))):
        torch.testing.assert_close(function(x).cpu(), expected)
    assert _model_of_all() is once
