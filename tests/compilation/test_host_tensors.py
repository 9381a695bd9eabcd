"""Tensors of the host that a model keeps: compared by their values, assigned and written to as in torch."""

import copy
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch import nn

import tpuport
from tpuport.objects.state import host_tensors

X = torch.tensor([[1.0, -2.0], [3.0, 0.5]])


class Keeping(nn.Module):
    """Keeps what `update` makes of it and of sizes on the host, and what it shows of that is in its result."""

    def __init__(self, update: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.update = update
        self.kept: Any = torch.tensor([1.0, 2.0])
        self.other: Any = self.kept

    def forward(self, x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        self.update(self, sizes)
        return self.linear(x) * float(self.kept.sum()) + float(self.other[0])


class Pair:
    """A model in torch and its port."""

    def __init__(self, update: Callable[[Any, torch.Tensor], Any]) -> None:
        self.reference = Keeping(update).eval()
        mesh = tpuport.create_mesh(devices=jax.devices()[:1])
        self.ported = tpuport.port(copy.deepcopy(self.reference), mesh=mesh)
        self.compiled = tpuport.compile(self.ported, static="sizes")

    def agree(self, size: int = 3) -> int:
        """Call both, compare what they give and keep; how many programs were compiled so far."""
        sizes = torch.tensor([size])
        torch.testing.assert_close(self.compiled(X, sizes).cpu(), self.reference(X, sizes).detach())
        for name in ("kept", "other"):
            torch.testing.assert_close(getattr(self.ported, name), getattr(self.reference, name))
        assert (self.ported.kept is self.ported.other) == (self.reference.kept is self.reference.other)
        return self.compiled.program.compilations

    def change(self, change: Callable[[Any], Any]) -> None:
        """Change both."""
        change(self.reference)
        change(self.ported)


def _replace(model: Any, sizes: torch.Tensor) -> None:
    model.kept = sizes * 2.0


def _replace_both(model: Any, sizes: torch.Tensor) -> None:
    model.kept = model.other = sizes * 2.0


def test_a_new_tensor_with_the_same_values_compiles_nothing() -> None:
    """As the thinker of Qwen2.5-Omni keeps the offset of positions, which it computes on the host."""
    pair = Pair(_replace)
    assert [pair.agree(size) for size in (3, 3, 3, 5, 5, 3)] == [1, 1, 1, 2, 2, 2]
    assert pair.agree(3) == 2


@pytest.mark.parametrize("update", [_replace, _replace_both])
def test_what_the_caller_writes_to_a_kept_tensor_is_in_no_other_call(update: Any) -> None:
    pair = Pair(update)
    models = pair.reference, pair.ported
    before = [(model.kept, model.other) for model in models]
    pair.agree()
    for model, (kept, other) in zip(models, before, strict=True):
        model.kept.add_(5)
        model.kept, model.other = kept, other
    assert pair.agree() == 1


def test_a_write_in_place_happens_in_every_call() -> None:
    pair = Pair(lambda model, _: model.kept.neg_())
    assert [pair.agree() for _ in range(4)] == [1, 2, 2, 2]
    pair.change(lambda model: vars(model).update(kept=torch.tensor([1.0, 2.0])))
    pair.agree()
    pair.agree()


@pytest.mark.parametrize(
    "move",
    [
        lambda kept, x: kept.to(x.device),
        lambda kept, x: kept.to(x),
        lambda kept, x: torch.as_tensor(kept, device=x.device),
        lambda kept, x: x * 0 + kept[0].item(),
    ],
)
def test_what_is_moved_has_the_values_of_that_moment(move: Callable) -> None:
    """A constant of the program is no view of the caller's memory, which is written to after it."""

    def step_of(kept: torch.Tensor) -> Callable:
        def step(x: torch.Tensor) -> Any:
            before = move(kept.add_(1), x).clone()  # on the host to move is to do nothing
            kept.mul_(2)
            return before, move(kept, x)

        return step

    mine, theirs = torch.ones(2), torch.ones(2)
    compiled, step = tpuport.compile(step_of(mine)), step_of(theirs)
    for _ in range(3):
        results = tpuport.to_cpu(compiled(torch.ones(2)))
        torch.testing.assert_close(results, step(torch.ones(2)))
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("most", [host_tensors._MOST_ELEMENTS, 1])
def test_one_tensor_is_not_two_of_equal_values(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_tensors, "_MOST_ELEMENTS", most)
    pair = Pair(lambda model, _: model.kept.add_(1))
    pair.agree()
    for other in (
        lambda kept: kept.clone(),
        lambda kept: kept[:],
        lambda kept: kept.flip(0),
        lambda kept: kept,
    ):
        pair.change(lambda model, other=other: vars(model).update(kept=torch.tensor([1.0, 2.0])))
        pair.change(lambda model, other=other: vars(model).update(other=other(model.kept)))
        pair.agree()
        pair.agree()
