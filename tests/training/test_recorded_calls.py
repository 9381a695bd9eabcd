"""Calls of ported models whose gradients torch's autograd records, beside torch on the CPU."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional

import tpuport

TOLERANCES = {"rtol": 2e-4, "atol": 2e-6}


def small_llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


class Convolutions(nn.Module):
    """A little of everything that image models have."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.group = nn.GroupNorm(2, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.last = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.silu(self.norm(self.first(x))), 2)
        x = functional.interpolate(self.up(self.group(x)), scale_factor=0.5, mode="bilinear")
        return self.last(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Pair(nn.Module):
    """Two heads, of which a loss may use one."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        trunk = self.trunk(x).tanh()
        return {"left": self.left(trunk), "right": self.right(trunk), "argmax": trunk.argmax(-1)}


def ported(model: nn.Module) -> nn.Module:
    return tpuport.port(copy.deepcopy(model))


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {
        name: None if parameter.grad is None else parameter.grad.detach().cpu()
        for name, parameter in model.named_parameters()
    }


def check_gradients(model: nn.Module, loss: Callable[[nn.Module], torch.Tensor]) -> nn.Module:
    """That a ported model has the gradients of the model, after each of two calls; returns the ported one."""
    other = ported(model)
    for _ in range(2):
        losses = [loss(each) for each in (model, other)]
        for each in losses:
            each.backward()
        torch.testing.assert_close(losses[1].detach().cpu(), losses[0].detach(), **TOLERANCES)
        check_same_gradients(model, other)
    return other


def check_same_gradients(model: nn.Module, other: nn.Module) -> None:
    expected, given = gradients(model), gradients(other)
    assert [name for name in expected if expected[name] is None] == [
        name for name in given if given[name] is None
    ]
    for name, gradient in expected.items():
        if gradient is not None:
            torch.testing.assert_close(
                given[name], gradient, msg=lambda text, name=name: f"{name}: {text}", **TOLERANCES
            )


def on_device_of(model: nn.Module, *tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.to(next(model.parameters()).device) for tensor in tensors]


def test_a_language_models_loss() -> None:
    ids = torch.randint(0, 32, (2, 7))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    other = check_gradients(
        small_llama(), lambda model: model(input_ids=ids, attention_mask=mask, labels=ids).loss
    )
    assert other.forward.compiled.program.compilations == 1


def test_a_loss_outside_of_the_model() -> None:
    x, target = torch.randn(4, 3, 8, 8), torch.tensor([0, 4, 2, 2])

    def loss(model: nn.Module) -> torch.Tensor:
        images, labels = on_device_of(model, x, target)
        return functional.cross_entropy(model(images), labels, label_smoothing=0.1)

    model = Convolutions()
    other = check_gradients(model, loss)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(other.get_buffer(name).cpu(), buffer, **TOLERANCES)


def test_loss_and_logits_together() -> None:
    teacher = torch.randn(2, 7, 32)
    ids = torch.randint(0, 32, (2, 7))

    def loss(model: nn.Module) -> torch.Tensor:
        output = model(input_ids=ids, labels=ids)
        (target,) = on_device_of(model, teacher)
        divergence = functional.kl_div(
            output.logits.log_softmax(-1), target.softmax(-1), reduction="batchmean"
        )
        return output.loss + 0.5 * divergence

    check_gradients(small_llama(), loss)


def test_heads_that_the_loss_does_not_use_have_no_gradient() -> None:
    x = torch.randn(3, 4)
    check_gradients(Pair(), lambda model: model(*on_device_of(model, x))["left"].square().sum())
    check_gradients(
        Pair(), lambda model: sum(model(*on_device_of(model, x))[name].sum() for name in ("left", "right"))
    )


def test_gradients_of_inputs_and_frozen_weights() -> None:
    model, x = Pair(), torch.randn(3, 4)
    model.trunk.requires_grad_(False)
    other = ported(model).eval()
    assert not other.trunk.weight.requires_grad
    assert other.left.weight.requires_grad
    expected = x.clone().requires_grad_()
    given = x.to("jax").requires_grad_()
    for each, start in ((model.eval(), expected), (other, given)):
        each(start)["right"].sin().sum().backward()
    torch.testing.assert_close(given.grad.cpu(), expected.grad, **TOLERANCES)
    check_same_gradients(model, other)


def test_nothing_is_recorded_where_torch_records_nothing() -> None:
    other = ported(Pair())
    x = torch.randn(3, 4).to("jax")
    with torch.no_grad():
        assert not other(x)["left"].requires_grad
    output = other(x)
    assert output["left"].requires_grad
    assert not output["argmax"].requires_grad
    with torch.inference_mode():
        assert not other(x)["left"].requires_grad
    other.requires_grad_(False)
    assert not other(x)["left"].requires_grad
    other.left.requires_grad_(True)
    assert [other(x)[name].requires_grad for name in ("left", "right")] == [True, False]


def test_functions_and_what_they_reach() -> None:
    model, x, factor = Pair(), torch.randn(3, 4), torch.randn(4)
    other = ported(model)
    factors = [factor.clone().requires_grad_(), factor.to("jax").requires_grad_()]

    def scaled(each: nn.Module, factor: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: each(x * factor)["left"].square().sum()

    scaled(model, factors[0])(x).backward()
    tpuport.compile(scaled(other, factors[1]))(x.to("jax")).backward()
    check_same_gradients(model, other)
    torch.testing.assert_close(factors[1].grad.cpu(), factors[0].grad, **TOLERANCES)


def test_two_models_and_several_losses() -> None:
    generator, critic = nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 1))
    noise = torch.randn(6, 4)
    others = [ported(generator), ported(critic)]
    for pair in ([generator, critic], others):
        made = pair[0](*on_device_of(pair[0], noise))
        pair[1](made.detach()).sum().backward()
        pair[1](made).mean().backward()
    for model, other in zip((generator, critic), others, strict=True):
        check_same_gradients(model, other)


def test_a_graph_is_used_again_only_if_it_is_retained() -> None:
    other = ported(Pair())
    loss = other(torch.randn(3, 4).to("jax"))["left"].sum()
    loss.backward(retain_graph=True)
    once = gradients(other)["left.bias"]
    loss.backward()
    torch.testing.assert_close(gradients(other)["left.bias"], 2 * once)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_autograd_grad_leaves_grad_alone() -> None:
    model, x = Pair(), torch.randn(3, 4)
    other = ported(model)
    results = [
        torch.autograd.grad(each(*on_device_of(each, x))["left"].sum(), [each.left.bias, each.trunk.weight])
        for each in (model, other)
    ]
    for expected, given in zip(*results, strict=True):
        torch.testing.assert_close(given.cpu(), expected, **TOLERANCES)
    assert all(gradient is None for gradient in gradients(other).values())


def test_hooks() -> None:
    model, x = Pair(), torch.randn(3, 4)
    other, seen = ported(model), []
    for each in (model, other):
        each.left.weight.register_hook(lambda gradient: gradient * 3)
        each.left.bias.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.cpu()))
        each.left.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))
        each.right.register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 2,))
        output = each(*on_device_of(each, x))
        output["left"].register_hook(lambda gradient: gradient + 1)
        (output["left"].sum() + output["right"].sum()).backward()
    check_same_gradients(model, other)
    torch.testing.assert_close(seen[1], seen[0])


class Custom(torch.autograd.Function):
    """A gradient that is not the one of what is computed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * ctx.factor * (x.abs() < 1), None


class Various(nn.Module):
    """What torch decides of gradients, in code."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))
        self.embedding = nn.Embedding(7, 4, padding_idx=0)
        self.third.weight = self.first.weight

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        x = Custom.apply(self.first(x), 0.5) + self.embedding(ids)
        with torch.no_grad():
            scale = self.second(x).abs().mean()
        y = torch.utils.checkpoint.checkpoint(self._inner, x, use_reentrant=False)
        y[:, 0] = y[:, 1] * scale
        y[1].mul_(2)
        return self.third(y) + x.detach() * self.second.bias

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(x)).clone()


def test_what_torch_decides() -> None:
    x, ids = torch.randn(3, 4), torch.tensor([0, 3, 6])
    check_gradients(Various(), lambda model: model(*on_device_of(model, x, ids)).square().mean())


def test_weights_that_were_updated_before_backward() -> None:
    other = ported(Pair())
    loss = other(torch.randn(3, 4).to("jax"))["left"].square().sum()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Deciding(nn.Module):
    """Reads a value in its own line."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if torch.is_grad_enabled() and x.requires_grad and x.isnan().any():
            raise ValueError("not a number")
        return x


def test_what_cannot_be_recorded_computes_and_says_so_at_backward() -> None:
    model, x = Deciding(), torch.randn(3, 4)
    other = ported(model)
    for _ in range(2):
        output = other(x.to("jax"))
        torch.testing.assert_close(output.detach().cpu(), model(x).detach(), **TOLERANCES)
        with pytest.raises(tpuport.PortError, match="asks for the value of a tensor"):
            output.sum().backward()


def test_blocks_in_a_loop_have_no_gradients() -> None:
    ids = torch.randint(0, 32, (2, 7))
    model = small_llama()
    other = ported(model)
    step = tpuport.compile(other, scan_layers=True)
    loss = step(input_ids=ids, labels=ids, use_cache=False).loss
    torch.testing.assert_close(
        loss.detach().cpu(), model(input_ids=ids, labels=ids).loss.detach(), **TOLERANCES
    )
    with pytest.raises(tpuport.PortError, match="weights are stacked"):
        loss.backward()
