"""Gradients by jax beside torch's autograd: equal, or refused with the line."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import tpuport
from tpuport import PortError, compat


def under_no_grad(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        target = torch.tanh(x @ w)
    return F.mse_loss(x @ w, target)


@torch.no_grad()
def teacher(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(2 * x @ w, -1)


def distilled(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return -(teacher(w, x) * torch.log_softmax(x @ w, -1)).sum(-1).mean()


def mode_set(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    torch.set_grad_enabled(False)
    scale = (x @ w).std()
    torch.set_grad_enabled(True)
    return ((x @ w) / scale).square().mean()


def views_and_writes_under_no_grad(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    mean = torch.zeros(w.shape[1], device=w.device)
    with torch.no_grad():
        rows = (x @ w)[1:].T
        mean.lerp_((x @ w).mean(0), 0.5)
        largest = torch.stack([rows.max(), *w.unbind(0)[0][:2]])
    return ((x @ w - mean) * rows.sum()).square().mean() * largest.sum()


def enabled_again(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        frozen = x @ w
        with torch.enable_grad():
            live = x @ w
    return (frozen * live).sum()


def value_and_grad(loss: Callable) -> Any:
    """torchax's; it is imported once tpuport is enabled."""
    from torchax import interop

    return interop.jax_value_and_grad(loss)


LOSSES = [under_no_grad, distilled, mode_set, views_and_writes_under_no_grad, enabled_again]
_GENERATOR = torch.Generator().manual_seed(0)
W, X = torch.randn(8, 8, generator=_GENERATOR), torch.randn(5, 8, generator=_GENERATOR)


def expected(loss: Callable) -> torch.Tensor:
    leaf = W.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf, X), leaf)
    return gradient


@pytest.mark.parametrize("around", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("loss", LOSSES)
def test_no_grad_ends_gradients(loss: Callable, around: Any) -> None:
    with around():
        _, compiled = tpuport.compile(value_and_grad(loss))(W, X)
        with compat.environment():
            _, by_operation = value_and_grad(loss)(W.to("jax"), X.to("jax"))
    for gradient in (compiled, by_operation):
        torch.testing.assert_close(tpuport.to_cpu(gradient), expected(loss))


def test_a_write_to_what_is_differentiated_is_refused() -> None:
    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = x @ w
        with torch.no_grad():
            y.mul_(2)
        return y.sum()

    with pytest.raises(PortError, match="written to in place that is being differentiated"):
        tpuport.compile(value_and_grad(loss))(W, X)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -gradient


@torch.library.custom_op("tpuport_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


scaled.register_fake(torch.empty_like)
scaled.register_autograd(lambda ctx, gradient: 100 * gradient)


class Hooked(nn.Module):
    def __init__(self, register: str) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8, bias=False)
        getattr(self.inner, register)(lambda *args: None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).sum()


def of_function(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return Reversed.apply(x @ w).sum()  # LINE of_function


def of_operator(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return scaled(x @ w).sum()  # LINE of_operator


def of_tensor_hook(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = x @ w
    y.register_hook(lambda gradient: gradient * 2)  # LINE of_tensor_hook
    return y.sum()


def of_reentrant_checkpoint(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = checkpoint(lambda w: x @ w, w, use_reentrant=True)  # LINE of_reentrant_checkpoint
    return y.sum()


@pytest.mark.parametrize("loss", [of_function, of_operator, of_tensor_hook, of_reentrant_checkpoint])
def test_what_only_autograd_knows_is_refused_with_its_line(loss: Callable) -> None:
    lines = Path(__file__).read_text().splitlines()
    number = next(index for index, line in enumerate(lines, 1) if line.endswith(f"# LINE {loss.__name__}"))
    with pytest.raises(PortError, match=f"line {number}, in {loss.__name__}"):
        tpuport.compile(value_and_grad(loss))(W, X)


@pytest.mark.parametrize(
    "register", ["register_full_backward_hook", "register_full_backward_pre_hook", "register_backward_hook"]
)
def test_backward_hooks_of_modules_are_refused(register: str) -> None:
    model = tpuport.port(Hooked(register))

    def loss(weights: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (x,))

    with pytest.raises(PortError, match=r"(?s)hook of Linear.*line \d+, in Hooked.forward"):
        tpuport.compile(value_and_grad(loss))(dict(model.named_parameters()), X)


def test_a_forward_without_gradients_is_as_ever() -> None:
    for function in (of_function, of_operator):
        torch.testing.assert_close(tpuport.to_cpu(tpuport.compile(function)(W, X)), function(W, X))


def test_a_checkpoint_that_is_not_reentrant_is_differentiated() -> None:
    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda w: torch.tanh(x @ w), w, use_reentrant=False).sum()

    _, gradient = tpuport.compile(value_and_grad(loss))(W, X)
    torch.testing.assert_close(tpuport.to_cpu(gradient), expected(loss))


@pytest.mark.parametrize("compiled", [True, False])
def test_running_statistics_in_training(compiled: bool) -> None:
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).train()
    model = tpuport.port(copy.deepcopy(reference)).train()

    def loss(weights: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (x,)).square().mean()

    step = value_and_grad(loss)
    reference(X).square().mean().backward()
    if compiled:
        _, gradients = tpuport.compile(step)(dict(model.named_parameters()), X)
    else:
        with compat.environment():
            _, gradients = step(dict(model.named_parameters()), X.to("jax"))
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(tpuport.to_cpu(gradients[name]), parameter.grad)
    for name, buffer in reference.named_buffers():
        torch.testing.assert_close(tpuport.to_cpu(model.get_buffer(name)), buffer)
    torch.testing.assert_close(tpuport.to_cpu(model.eval()(X)), reference.eval()(X))


def test_jaxs_own_way_under_no_grad_says_what_to_write() -> None:
    from torchax import interop

    by_jax = interop.torch_view(jax.value_and_grad(interop.jax_view(lambda w: (w * w).sum())))
    with torch.no_grad(), pytest.raises(PortError, match=re.escape("torchax.interop.jax_value_and_grad")):
        tpuport.compile(lambda w: by_jax(w))(W)
