"""diffusers' schedulers, and all steps of each as a compiled program would take them.

The scheduler is made inside the call, so that its tables are tensors of the host; latents, predictions and timesteps
are arguments, as in a program that is compiled once for all steps. What needs other arguments is listed as not run.
"""

import functools
from typing import Any

import torch
from diffusers import schedulers

STEPS = 4


def names() -> list[str]:
    """The names of the schedulers that have a step."""
    return [name for name in sorted(dir(schedulers)) if name.endswith("Scheduler") and "Flax" not in name]


def build(name: str) -> tuple[Any, list[dict[str, Any]]]:
    """A function that takes steps, and its arguments."""
    scheduler_class = getattr(schedulers, name)
    sample = torch.randn(1, 4, 8, 8)
    example = with_timesteps(scheduler_class)
    timesteps = [torch.as_tensor(timestep).clone() for timestep in example.timesteps]
    predictions = [0.1 * torch.randn_like(sample) for _ in timesteps]
    arguments = {"sample": sample, "timestep": timesteps, "model_output": predictions}
    return functools.partial(take_steps, scheduler_class), [arguments]


def with_timesteps(scheduler_class: type[Any]) -> Any:
    """A scheduler with its default settings, about to take its first step."""
    scheduler = scheduler_class()
    scheduler.set_timesteps(STEPS)
    return scheduler


def take_steps(
    scheduler_class: type[Any],
    sample: torch.Tensor,
    timestep: list[torch.Tensor],
    model_output: list[torch.Tensor],
) -> None:
    scheduler = with_timesteps(scheduler_class)
    for moment, prediction in zip(timestep, model_output, strict=True):
        sample = scheduler.step(prediction, moment, sample, return_dict=False)[0]
