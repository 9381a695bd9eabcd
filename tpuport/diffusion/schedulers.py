"""diffusers' schedulers on the device: tables of coefficients, and a step that looks its row up."""

import inspect
from typing import Any

import numpy as np

from tpuport.diffusion.scheduler_probing import build, clone
from tpuport.diffusion.scheduler_steps import PortedStep, install, uninstall
from tpuport.diffusion.scheduler_tables import StepTables, initial_state, outputs, step
from tpuport.errors import PortError

__all__ = [
    "PortedStep",
    "StepTables",
    "initial_state",
    "install",
    "outputs",
    "step",
    "tables_for",
    "uninstall",
]


def tables_for(
    scheduler: Any,
    num_inference_steps: int | None = None,
    *,
    sigmas: Any = None,
    timesteps: Any = None,
    begin_index: int = 0,
    step_options: dict[str, Any] | None = None,
    **options: Any,
) -> StepTables:
    """A scheduler's steps as tables, checked against diffusers' own step for every timestep.

    Args:
        scheduler: of diffusers; it is not changed. Where none of the next three arguments is given, its timesteps
            must be set and no step be taken.
        num_inference_steps: number of steps.
        sigmas: noise levels of one's own, from high to low.
        timesteps: timesteps of one's own.
        begin_index: the first step that will be taken; rows before it are zeros.
        step_options: further arguments of the scheduler's `step`, such as eta.
        options: further arguments of its `set_timesteps`, such as mu.

    Returns:
        Tables of as many rows as the scheduler has timesteps, which may be more than `num_inference_steps`.

    Raises:
        PortError: the scheduler's step is no linear map, or it does not take these steps.
    """
    twin = _ready(
        scheduler,
        {"num_inference_steps": num_inference_steps, "sigmas": sigmas, "timesteps": timesteps},
        options,
    )
    count = len(twin.timesteps)
    if not 0 <= begin_index < count:
        raise PortError(
            f"there is no step {begin_index} of {count}", where="begin_index", fix="number them from 0"
        )
    return build(twin, begin_index, step_options).tables


def _ready(scheduler: Any, schedule: dict[str, Any], options: dict[str, Any]) -> Any:
    """A copy of the scheduler with its timesteps set."""
    name = type(scheduler).__name__
    if not (hasattr(scheduler, "set_timesteps") and callable(getattr(scheduler, "step", None))):
        raise PortError(
            f"a {name} is no scheduler",
            where="scheduler",
            fix="give a scheduler of diffusers, such as pipe.scheduler",
        )
    given, options = ({k: v for k, v in named.items() if v is not None} for named in (schedule, options))
    if isinstance(given.get("sigmas"), list | tuple):
        given["sigmas"] = np.array(given["sigmas"], float)  # some classes take nothing else
    twin = clone(scheduler)
    if given:
        _set_timesteps(twin, given | options)
    elif options:
        raise PortError(
            f"{', '.join(options)} without steps to set",
            where="tables_for",
            fix="give num_inference_steps too",
        )
    elif getattr(twin, "num_inference_steps", None) is None:
        raise PortError(f"this {name} has no steps yet", where="scheduler", fix="give num_inference_steps")
    elif getattr(twin, "step_index", None) or getattr(twin, "counter", None):
        raise PortError(
            f"this {name} is in the middle of a run",
            where="scheduler",
            fix="give num_inference_steps, or set_timesteps",
        )
    return twin


def _set_timesteps(twin: Any, given: dict[str, Any]) -> None:
    name, known = type(twin).__name__, inspect.signature(twin.set_timesteps).parameters
    if unknown := sorted(given.keys() - known.keys()):
        raise PortError(
            f"{name} does not take {', '.join(unknown)}",
            where=f"{name}.set_timesteps",
            fix=f"it takes {', '.join(key for key in known if key != 'device')}",
        )
    steps = given.get("num_inference_steps", 1)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise PortError(f"{steps!r} is no number of steps", where="num_inference_steps", fix="give 1 or more")
    try:
        twin.set_timesteps(**given)
    except Exception as error:
        raise PortError(
            f"{name} does not take these steps: {str(error).strip() or type(error).__name__}",
            where=", ".join(f"{key}={value!r:.60}" for key, value in given.items()),
            fix="see the documentation of its set_timesteps",
        ) from error
