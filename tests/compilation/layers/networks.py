"""Small networks of blocks, of all the kinds that a loop has to keep right."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

import tpuport
from tpuport import compat
from tpuport.compilation import collect_weights, layers, use_weights
from tpuport.compilation.programs.capture import capture
from tpuport.compilation.programs.passes import Draft, run_passes

WIDTH = 4


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a network does. `turns`: which activation each block has, over and over."""

    depth: int = 3
    turns: tuple[str, ...] = ("tanh",)
    residual: bool = True
    context: bool = False
    two_streams: bool = False
    collected: str = ""  # "", "sum", "stack", "list"
    between: bool = False
    first_input: bool = False
    scales: str = ""  # "", "same", "each"
    wide_last: bool = False
    bias: bool = True
    passes: int = 1
    buffer: bool = False


class Block(torch.nn.Module):
    def __init__(self, plan: Plan, number: int) -> None:
        super().__init__()
        wide = plan.wide_last and number == plan.depth - 1
        self.inner = torch.nn.Linear(WIDTH, 2 * WIDTH if wide else WIDTH, bias=plan.bias)
        self.outer = torch.nn.Linear(2 * WIDTH if wide else WIDTH, WIDTH, bias=plan.bias)
        self.activation = plan.turns[number % len(plan.turns)]
        self.residual = plan.residual
        self.scale = {"": None, "same": 0.5, "each": 0.5 + number}[plan.scales]
        if plan.buffer:
            self.register_buffer("offset", torch.full((WIDTH,), float(number)))

    def forward(
        self, x: torch.Tensor, other: torch.Tensor | None = None, twin: torch.Tensor | None = None
    ) -> Any:
        hidden = getattr(torch, self.activation)(self.inner(x))
        if other is not None and hidden.shape == other.shape:
            hidden = hidden + torch.softmax(hidden @ other.transpose(-1, -2), -1) @ other
        out = self.outer(hidden)
        if self.scale is not None:
            out = out * self.scale
        if hasattr(self, "offset"):
            out = out + self.offset
        out = out + x if self.residual else out
        return out if twin is None else (out, twin + torch.sin(out))


class Network(torch.nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.blocks = torch.nn.ModuleList(Block(plan, number) for number in range(plan.depth))
        self.head = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        outs: list[torch.Tensor] = []
        for _ in range(self.plan.passes):
            x = self.once(x, outs)
        if self.plan.collected == "sum":
            x = x + sum(outs)
        elif self.plan.collected == "stack":
            return self.head(x), torch.stack(outs)
        elif self.plan.collected == "list":
            return self.head(x), outs
        return self.head(x)

    def once(self, x: torch.Tensor, outs: list[torch.Tensor]) -> torch.Tensor:
        plan, first = self.plan, x
        context = torch.cos(x) if plan.context else None
        twin = torch.zeros_like(x) if plan.two_streams else None
        for block in self.blocks:
            if plan.between:
                x = x * 1.5 + (first if plan.first_input else 0.0)
            if twin is None:
                x = block(x, context)
            else:
                x, twin = block(x, context, twin)
            outs.append(x)
        return x if twin is None else x + twin


def looped(function: Callable, *arguments: Any) -> tuple[Any, Draft]:
    """(what a function gives with its blocks in loops, its program)."""
    with layers.record_calls() as blocks:
        captured = capture(function, arguments, "f", checks_indices=False, has_keys=False)
    draft = run_passes(Draft(captured, blocks=blocks))
    results = jax.jit(draft.captured.function)(*arguments)
    return jax.tree.unflatten(jax.tree.structure(captured.results), results), draft


def both(model: torch.nn.Module, *inputs: torch.Tensor) -> tuple[Any, Any, Draft]:
    """(what the ported model gives, what it gives with its blocks in loops, the program of that)."""
    if getattr(model, "tpuport_mesh", None) is None:
        tpuport.port(model)
    weights = collect_weights(model)

    def run(weights: dict[str, Any], inputs: list[Any]) -> Any:
        with use_weights([model], [weights]):
            return compat.as_jax(model(*compat.as_torch(inputs)))

    arrays = [compat.to_jax(x) for x in inputs]
    stacked = layers.stack_weights(weights, layers.find_stacks(model, weights))
    return jax.jit(run)(weights, arrays), *looped(run, stacked, arrays)


def assert_equal(one: Any, other: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
