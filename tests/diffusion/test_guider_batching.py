"""Conditions of a guider as one call: who gets what, and what runs alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tpuport
from tpuport import compat
from tpuport.compilation.model_calls import compile_call
from tpuport.diffusion.compiled_components import ComponentCall
from tpuport.diffusion.guider_batching import ConditionBatcher
from tpuport.diffusion.mixed_devices import allow_mixed, to_host


class Model(torch.nn.Module):
    """Mixes latents [B, 4] with a prompt [B, 4], or with nothing, and with constants of any shape."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        prompt: torch.Tensor | None,
        scale: float = 1.0,
        table: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor]:
        out = torch.sin(hidden_states * scale)
        out = out if prompt is None else out + prompt * torch.cos(prompt)
        return (out if table is None else out * table.sum(),)


class Calls:
    """A model's forward, and the batch of each program call."""

    def __init__(self, dp: int | None) -> None:
        self.model = Model()
        tpuport.port(self.model)
        self.forward: ComponentCall = compile_call(self.model, call_class=ComponentCall)
        self.batches: list[int] = []
        run = self.forward.run

        def counter(args: tuple, kwargs: dict) -> Any:
            self.batches.append((args or tuple(kwargs.values()))[0].shape[0])
            return run(args, kwargs)

        self.batcher = ConditionBatcher(self.forward, dp)
        self.forward.interceptor = lambda _, args, kwargs: self.batcher(counter, args, kwargs)

    def step(self, *conditions: dict[str, Any]) -> None:
        self.batcher.begin_step(list(conditions))
        self.batches.clear()

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        with allow_mixed():
            (out,) = self.model(*args, **kwargs)
        with torch.no_grad():
            (expected,) = Model()(*(to_host(x) for x in args), **{k: _host(x) for k, x in kwargs.items()})
        torch.testing.assert_close(to_host(out), expected, rtol=1e-5, atol=1e-6)
        return out


def _host(value: Any) -> Any:
    return to_host(value) if isinstance(value, torch.Tensor) else value


def noise(seed: int, batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, 4, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def calls() -> Callable[[int | None], Calls]:
    created: dict[int | None, Calls] = {}
    return lambda dp: created.setdefault(dp, Calls(dp))


@pytest.mark.parametrize("count", [2, 3])
def test_conditions_share_one_call(calls: Callable, count: int) -> None:
    model, latents = calls(None), noise(0)
    conditions = [{"prompt": noise(n + 1)} for n in range(count)]
    for _ in range(2):
        model.step(*conditions)
        for condition in conditions:
            model(hidden_states=latents, **condition)
        assert model.batches == [count]


def test_latents_of_the_device_and_positional_arguments(calls: Callable) -> None:
    model, latents = calls(None), compat.wrap(compat.to_jax(noise(0)))
    first, second = noise(1), noise(2)
    model.step({"prompt": first}, {"prompt": second})
    model(latents, first)
    model(latents, second)
    assert model.batches == [2]


@pytest.mark.parametrize(
    ("dp", "batch", "expected"), [(2, 1, [2]), (2, 2, [2, 2]), (1, 1, [1, 1]), (4, 2, [4])]
)
def test_batched_where_dp_gains_by_it(calls: Callable, dp: int, batch: int, expected: list[int]) -> None:
    model, latents = calls(dp), noise(0, batch)
    conditions = [{"prompt": noise(1, batch)}, {"prompt": noise(2, batch)}]
    model.step(*conditions)
    for condition in conditions:
        model(hidden_states=latents, **condition)
    assert model.batches == expected


@pytest.mark.parametrize(
    "second",
    [
        {"hidden_states": noise(9)},
        {"scale": 0.5},
        {"table": torch.ones(3)},
        {"prompt": noise(8)},
        {"prompt": None},
    ],
)
def test_another_argument_runs_alone(calls: Callable, second: dict) -> None:
    model, latents = calls(None), noise(0)
    item, two = noise(1), noise(2)
    model.step({"prompt": item}, {"prompt": two})
    model(hidden_states=latents, prompt=item)
    model(**({"hidden_states": latents, "prompt": two} | second))
    assert model.batches == [2, 1]
    model(hidden_states=latents, prompt=two)  # what was kept has been dropped
    assert model.batches == [2, 1, 1]


def test_latents_that_were_written_to_run_alone(calls: Callable) -> None:
    model, latents, item, two = calls(None), noise(0), noise(1), noise(2)
    model.step({"prompt": item}, {"prompt": two})
    model(hidden_states=latents, prompt=item)
    latents.mul_(2)
    model(hidden_states=latents, prompt=two)
    assert model.batches == [2, 1]


def test_shapes_that_differ_run_alone(calls: Callable) -> None:
    model, latents = calls(None), noise(0)
    item, two = noise(1), torch.randn(1, 1)
    model.step({"prompt": item}, {"prompt": two})
    model(hidden_states=latents, prompt=item)
    model(hidden_states=latents, prompt=two)
    assert model.batches == [1, 1]


def test_what_is_no_batch_is_passed_once(calls: Callable) -> None:
    model, latents, table = calls(None), noise(0), torch.arange(3.0)
    item, two = noise(1), noise(2)
    model.step({"prompt": item}, {"prompt": two})
    model(hidden_states=latents, prompt=item, table=table)
    model(hidden_states=latents, prompt=two, table=table)
    assert model.batches == [2]


def test_nothing_is_kept_into_the_next_step(calls: Callable) -> None:
    model, latents, item, two = calls(None), noise(0), noise(1), noise(2)
    model.step({"prompt": item}, {"prompt": two})
    model(hidden_states=latents, prompt=item)
    model.step({"prompt": two})
    model(hidden_states=latents, prompt=two)
    assert model.batches == [1]
