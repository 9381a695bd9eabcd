"""diffusers' schedulers on the device: their steps as tables of coefficients, and a
`step` that looks its row up.
"""

import inspect
from typing import Any

import numpy as np

from tpuport.base.mappings import without_nones
from tpuport.diffusion.ported_step import PortedStep
from tpuport.diffusion.scheduler_probing import (
    clone_scheduler,
    probe_scheduler,
)
from tpuport.diffusion.scheduler_tables import (
    StepTables,
    compute_outputs,
    initial_state,
    take_step,
)
from tpuport.errors import PortError

__all__ = [
    "PortedStep",
    "StepTables",
    "build_tables",
    "compute_outputs",
    "initial_state",
    "install",
    "take_step",
    "uninstall",
]


def build_tables(
    scheduler: Any,
    num_inference_steps: int | None = None,
    *,
    sigmas: Any = None,
    timesteps: Any = None,
    begin_index: int = 0,
    step_options: dict[str, Any] | None = None,
    **options: Any,
) -> StepTables:
    """A scheduler's steps as tables, checked against diffusers' own step for every
    timestep.

    Args:
        scheduler: of diffusers; it is not changed. If none of the next three arguments
            is given, its timesteps must be set and no step may have been taken.
        num_inference_steps: number of steps.
        sigmas: custom noise levels, from high to low.
        timesteps: custom timesteps.
        begin_index: the first step that will be taken; rows before it are zeros.
        step_options: further arguments of the scheduler's `step`, such as eta.
        options: further arguments of its `set_timesteps`, such as mu.

    Returns:
        Tables of as many rows as the scheduler has timesteps, which may be more than
        `num_inference_steps`.

    Raises:
        PortError: the scheduler's step is not a linear map, or it does not accept these
            steps.
    """
    schedule = {
        "num_inference_steps": num_inference_steps,
        "sigmas": sigmas,
        "timesteps": timesteps,
    }
    clone = _clone_with_timesteps(
        scheduler, without_nones(schedule), without_nones(options)
    )
    count = len(clone.timesteps)
    if not 0 <= begin_index < count:
        raise PortError(
            f"there is no step {begin_index} of {count}",
            where="begin_index",
            fix="number them from 0",
        )
    return probe_scheduler(clone, begin_index, step_options).tables


def _clone_with_timesteps(
    scheduler: Any, schedule: dict[str, Any], options: dict[str, Any]
) -> Any:
    """A copy of the scheduler with its timesteps set."""
    _check_scheduler(scheduler)
    name = type(scheduler).__name__
    clone = clone_scheduler(scheduler)
    if schedule:
        if isinstance(schedule.get("sigmas"), list | tuple):
            # Some classes take nothing but an array.
            schedule["sigmas"] = np.array(schedule["sigmas"], float)
        _set_timesteps(clone, schedule | options)
        return clone
    if options:
        raise PortError(
            f"{', '.join(options)} without steps to set",
            where="build_tables",
            fix="give num_inference_steps too",
        )
    if getattr(clone, "num_inference_steps", None) is None:
        raise PortError(
            f"this {name} has no steps yet",
            where="scheduler",
            fix="give num_inference_steps",
        )
    # The coefficients of a multistep solver depend on a history that the tables would
    # not have.
    if getattr(clone, "step_index", None) or getattr(clone, "counter", None):
        raise PortError(
            f"this {name} is in the middle of a run",
            where="scheduler",
            fix="give num_inference_steps, or set_timesteps",
        )
    return clone


def _check_scheduler(scheduler: Any) -> None:
    if not (hasattr(scheduler, "set_timesteps") and hasattr(scheduler, "step")):
        raise PortError(
            f"a {type(scheduler).__name__} is not a scheduler",
            where="scheduler",
            fix="give a scheduler of diffusers, such as pipe.scheduler",
        )


def _set_timesteps(scheduler: Any, arguments: dict[str, Any]) -> None:
    name = type(scheduler).__name__
    known = inspect.signature(scheduler.set_timesteps).parameters
    unknown = sorted(arguments.keys() - known.keys())
    if unknown:
        raise PortError(
            f"{name} does not take {', '.join(unknown)}",
            where=f"{name}.set_timesteps",
            fix=f"it takes {', '.join(key for key in known if key != 'device')}",
        )
    steps = arguments.get("num_inference_steps", 1)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise PortError(
            f"{steps!r} is not a number of steps",
            where="num_inference_steps",
            fix="give 1 or more",
        )
    try:
        scheduler.set_timesteps(**arguments)
    except Exception as error:
        raise PortError(
            f"{name} does not accept these steps: {str(error).strip() or type(error).__name__}",
            where=", ".join(f"{key}={value!r:.60}" for key, value in arguments.items()),
            fix="see the documentation of its set_timesteps",
        ) from error


def install(scheduler: Any) -> None:
    """Let a scheduler's `step` run on the device, if it does not yet; PortError for
    anything but a scheduler.
    """
    _check_scheduler(scheduler)
    if not is_installed(scheduler):
        scheduler.step = PortedStep(scheduler)


def uninstall(scheduler: Any) -> None:
    """Give a scheduler its own `step` back; does nothing if it has it, or is None."""
    if is_installed(scheduler):
        del scheduler.step


def is_installed(scheduler: Any) -> bool:
    """Whether a scheduler's `step` is a `PortedStep`."""
    return isinstance(getattr(scheduler, "step", None), PortedStep)
