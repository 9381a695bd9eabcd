"""What the recipes of pipelines do alike: devices, loading, a call with its times, and what it differs from torch's."""

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console

import tpuport


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of the first call, whose two steps compile everything, and of the whole call after it."""

    first: float
    whole: float
    steps: int

    @property
    def step(self) -> float:
        """Seconds per step, including text encoders and VAE."""
        return self.whole / self.steps

    def __str__(self) -> str:
        return (
            f"{self.first:.1f} s for a first call of two steps, then {self.whole:.2f} s for {self.steps} steps: "
            f"{self.step:.3f} s per step, including text encoders and VAE"
        )


def start() -> None:
    """Enable tpuport, now that the devices are chosen, and hide what the libraries print while they load."""
    import diffusers
    from transformers.utils import logging as transformers_logging

    import tpuport.auto  # noqa: F401

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    diffusers.utils.logging.disable_progress_bar()


def port(pipeline: Any, mesh: Any, console: Console) -> Any:
    """The same pipeline, ported."""
    size = sum(weight.numel() for weight in pipeline.transformer.parameters()) / 1e6
    pipeline = tpuport.port(pipeline, mesh=mesh)
    console.print(f"ported {type(pipeline).__name__}, its transformer has {size:.1f} M parameters")
    return pipeline


def timed_call(pipeline: Any, call: Callable[[int], Any], steps: int, console: Console) -> Any:
    """The pipeline's result, after a call of two steps that compiles the same programs; prints times and programs.

    Args:
        pipeline: a ported pipeline.
        call: of the pipeline, with the number of steps; its result is on the host.
        steps: of the second call.
        console: for the times, and how many programs were compiled.
    """
    started = time.perf_counter()
    pipeline.set_progress_bar_config(disable=True)
    call(min(2, steps))
    middle = time.perf_counter()
    pipeline.set_progress_bar_config(disable=None)
    result = call(steps)
    console.print(str(Timing(middle - started, time.perf_counter() - middle, steps)))
    counts = ", ".join(f"{name} {count}" for name, count in compilations(pipeline).items())
    console.print(f"programs compiled over both calls: {counts}")
    return result


def compilations(pipeline: Any) -> dict[str, int]:
    """The number of programs compiled for each model of a ported pipeline, by its name in the pipeline."""
    counts: dict[str, int] = {}
    for name, module in pipeline.components.items():
        if not isinstance(module, torch.nn.Module):
            continue
        parts = {
            name: module,
            f"{name}.encoder": getattr(module, "encoder", None),
            f"{name}.decoder": getattr(module, "decoder", None),
        }
        for part_name, part in parts.items():
            program = getattr(getattr(part, "forward", None), "program", None)
            if program is not None and program.compilations:
                counts[part_name] = program.compilations
    return counts


def largest_difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference of two arrays."""
    return float(abs(a - b).max())


def print_difference(name: str, clips: np.ndarray, reference_clips: np.ndarray, console: Console) -> None:
    """Print how far clips are from torch's."""
    difference = largest_difference(clips, reference_clips) * 255
    console.print(f"{name}: a pixel differs from torch's by up to {difference:.3g} of 255")


def report_difference(clips: np.ndarray, reference_clips: np.ndarray, console: Console) -> bool:
    """Print how far clips from 0 to 1 are from torch's; return whether no pixel differs by more than 1/255."""
    print_difference("tpuport", clips, reference_clips, console)
    is_equal = largest_difference(clips, reference_clips) <= 1 / 255
    error = float(((clips - reference_clips) ** 2).sum() ** 0.5 / (reference_clips**2).sum() ** 0.5)
    if is_equal:
        console.print(f"torch renders the same: relative error {error:.1e}", style="green")
    else:
        console.print(f"torch renders something else: relative error {error:.1e}", style="red")
    return is_equal
