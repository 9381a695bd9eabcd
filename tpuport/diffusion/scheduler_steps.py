"""The step of a scheduler object, on the device: called by a pipeline as diffusers' own step is."""

import copy
import dataclasses
import functools
import inspect
import logging
from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport import compat
from tpuport.compilation import Program
from tpuport.diffusion import mixed_devices
from tpuport.diffusion.scheduler_probing import Built, build
from tpuport.diffusion.scheduler_tables import State, StepTables, initial_state, outputs
from tpuport.errors import PortError
from tpuport.static_values import exact_key

logger = logging.getLogger("tpuport")

_PLAIN = (bool, int, float, str, type(None))
_KEPT = 8  # tables of this many different runs
_OURS = ("model_output", "timestep", "sample", "generator", "return_dict")


@functools.cache
def program() -> Program:
    """The compiled step: one compilation a shape and kind of scheduler, whichever the step."""
    return Program(outputs, "scheduler step")


@dataclasses.dataclass
class _Run:
    """One run through the timesteps, from `set_timesteps` to the last step."""

    timesteps: Any  # the scheduler's own object: a new one is a new run
    sigmas: Any
    built: Built
    tables: StepTables
    options: Hashable
    next: int
    state: State | None


class PortedStep:
    """In the place of `scheduler.step`: takes tensors of the host or the device, gives tensors on the device.

    The first step of a run builds the tables, on the host, unless they are known. What a scheduler's `step` itself
    would change about the scheduler, its history, is kept here; `step_index` is kept in both.

    A call that tables cannot serve (a step that is no linear map, a tensor among its options, such as the timesteps of
    single tokens) goes to diffusers' own step on the host, which is logged once.

    Attributes:
        original: diffusers' own step.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler: Any = scheduler
        self.original = type(scheduler).step.__get__(scheduler)
        # Pipelines look which arguments a scheduler's step takes.
        self.__signature__ = inspect.signature(self.original)
        self._known: dict[Hashable, Built | PortError] = {}
        self._run: _Run | None = None
        self._told: set[str] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> "PortedStep":
        return PortedStep(copy.deepcopy(self._scheduler, memo))

    def __reduce__(self) -> tuple[type, tuple[Any]]:
        return PortedStep, (self._scheduler,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One step, with the arguments and the result of diffusers' own.

        Raises:
            PortError: the scheduler's step_index was moved within a run, or a run with history cannot go on here.
        """
        bound = self.__signature__.bind(*args, **kwargs)
        bound.apply_defaults()
        with mixed_devices.suspended():
            return self._served(bound.arguments)

    def _served(self, given: dict[str, Any]) -> Any:
        if (reason := self._reason(given)) is not None:
            return self._on_host(given, reason)
        index, fresh = self._place(given["timestep"])
        if fresh:
            reason = self._begin(index, given)
        elif self._run is not None and exact_key(self._options(given)) != self._run.options:
            reason = "its options change within a run"
        return self._step(index, given) if reason is None else self._on_host(given, reason)

    def _reason(self, given: dict[str, Any]) -> str | None:
        """Why diffusers' own step must do this, if it must."""
        output, sample, timestep = (given.get(name) for name in ("model_output", "sample", "timestep"))
        if not (isinstance(output, torch.Tensor) and isinstance(sample, torch.Tensor)):
            return "it takes something else than a model's output and a sample"
        if output.shape != sample.shape:
            return f"the model's output is {tuple(output.shape)} and the sample {tuple(sample.shape)}"
        if not (output.is_floating_point() and sample.is_floating_point()):
            return "its tensors do not hold real numbers"
        whole = isinstance(timestep, int) or (
            isinstance(timestep, torch.Tensor) and not timestep.is_floating_point()
        )
        if whole and self._scheduler.timesteps.is_floating_point():
            return "its timesteps are not whole numbers"  # most classes raise an error of their own
        others = [name for name, value in self._options(given).items() if not isinstance(value, _PLAIN)]
        return f"{', '.join(others)} cannot be in a table" if others else None

    @staticmethod
    def _options(given: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if name not in _OURS}

    def _place(self, timestep: Any) -> tuple[int, bool]:
        """(the step's index, whether it is the first of a run)."""
        run, scheduler = self._run, self._scheduler
        if run is not None and (
            run.timesteps is not scheduler.timesteps or run.sigmas is not getattr(scheduler, "sigmas", None)
        ):
            run = None
        if not hasattr(scheduler, "_step_index"):
            return self._search(timestep, run)
        if scheduler._step_index is None:
            run = None
            scheduler._init_step_index(_on_host(timestep))
        index: int = scheduler.step_index
        if run is not None and index != run.next:
            if run.tables.slots:
                raise PortError(
                    f"step_index went from {run.next} to {index} within a run, and the steps before it are its history",
                    where=f"{type(scheduler).__name__}.step",
                    fix="call set_timesteps before another run, or tpuport.diffusion.schedulers.uninstall(scheduler)",
                )
            run = None
        return index, run is None

    def _search(self, timestep: Any, run: _Run | None) -> tuple[int, bool]:
        """As `_place`, for a scheduler that goes by the timestep itself."""
        value, known = float(_on_host(timestep)), self._scheduler.timesteps.tolist()
        if run is not None and run.next < len(known) and known[run.next] == value:
            return run.next, False
        return (known.index(value) if value in known else -1), True

    def _begin(self, index: int, given: dict[str, Any]) -> str | None:
        """Make the run that starts at this index; why not, if it cannot be."""
        self._run = None
        if not 0 <= index < len(self._scheduler.timesteps):
            return "this timestep is none of the scheduler's"
        options = self._options(given)
        built = self._tables(index, options)
        if isinstance(built, PortError):
            return built.what
        scheduler = self._scheduler
        sigmas = getattr(scheduler, "sigmas", None)
        self._run = _Run(
            scheduler.timesteps, sigmas, built, built.tables.padded(), exact_key(options), index, None
        )
        return None

    def _tables(self, start: int, options: dict[str, Any]) -> Built | PortError:
        scheduler = self._scheduler
        key = (
            start,
            exact_key(options),
            exact_key(dict(scheduler.config)),
            *map(_bits, (scheduler.timesteps, getattr(scheduler, "sigmas", None))),
        )
        if key not in self._known:
            if len(self._known) >= _KEPT:
                self._known.pop(next(iter(self._known)))
            try:
                self._known[key] = build(scheduler, start, options)
            except PortError as error:
                self._known[key] = error
        return self._known[key]

    def _step(self, index: int, given: dict[str, Any]) -> Any:
        run = self._run
        assert run is not None
        if index >= len(run.timesteps):
            raise PortError(
                f"the scheduler has {len(run.timesteps)} timesteps, and this is one more",
                where=f"{type(self._scheduler).__name__}.step",
                fix="call set_timesteps before another run",
            )
        output, sample = (_array(given[name]) for name in ("model_output", "sample"))
        state = initial_state(run.tables, sample) if run.state is None else run.state
        fields, state = program()(
            run.tables, np.int32(index), output, sample, state, self._noise(run, index, given, sample)
        )
        run.state, run.next = state, index + 1
        if hasattr(self._scheduler, "_step_index"):
            self._scheduler._step_index = index + 1
        tensors = dict(zip(run.tables.fields, compat.as_torch(fields), strict=True))
        if given.get("return_dict", True):
            return run.built.result(**tensors)
        return tuple(tensors.values())[: run.built.returned]

    @staticmethod
    def _noise(run: _Run, index: int, given: dict[str, Any], sample: jax.Array) -> tuple[jax.Array, ...]:
        """Normal noise as diffusers would draw it, on the host: the same numbers for the same generator."""
        drawn = []
        if run.built.draws[index]:
            from diffusers.utils.torch_utils import randn_tensor

            output = given["model_output"]
            for dtype in run.built.draws[index]:
                shape, kind = tuple(output.shape), dtype or output.dtype
                noise = randn_tensor(
                    shape, generator=given.get("generator"), device=torch.device("cpu"), dtype=kind
                )
                drawn.append(compat.to_jax(noise))
        missing = run.tables.noises - len(drawn)
        return (*drawn, *[jnp.zeros_like(sample, dtype=jnp.float32)] * missing)

    def _on_host(self, given: dict[str, Any], reason: str) -> Any:
        """diffusers' own step on the host; its tensors back on the device where the sample was there."""
        scheduler, run = self._scheduler, self._run
        name = type(scheduler).__name__
        if run is not None and run.state:
            raise PortError(
                f"{reason}, and the history of this run is on the device",
                where=f"{name}.step",
                fix="give every step of a run the same options, or tpuport.diffusion.schedulers.uninstall(scheduler)",
            )
        if reason not in self._told:
            self._told.add(reason)
            logger.warning("%s.step runs on the host: %s", name, reason)
        result = self.original(**{key: _on_host(value) for key, value in given.items()})
        if run is not None and getattr(scheduler, "_step_index", None) is not None:
            run.next = scheduler._step_index
        sample: Any = given.get("sample")
        if not compat.is_ported(sample):
            return result
        back = lambda x: compat.wrap(jax.device_put(compat.to_jax(x), _array(sample).sharding))  # noqa: E731
        if isinstance(result, tuple):
            return tuple(back(x) if isinstance(x, torch.Tensor) else x for x in result)
        return type(result)(
            **{key: back(x) if isinstance(x, torch.Tensor) else x for key, x in result.items()}
        )


def _array(tensor: torch.Tensor) -> jax.Array:
    return compat.as_jax(tensor) if compat.is_ported(tensor) else compat.to_jax(tensor)


def _on_host(value: Any) -> Any:
    return compat.to_torch(compat.as_jax(value)) if compat.is_ported(value) else value


def _bits(tensor: Any) -> Hashable:
    tensor = _on_host(tensor)
    if not isinstance(tensor, torch.Tensor):
        return None
    return str(tensor.dtype), tensor.detach().cpu().contiguous().view(-1).numpy().tobytes()


def install(scheduler: Any) -> None:
    """Let a scheduler's `step` run on the device; does nothing where it does already.

    Raises:
        PortError: this is no scheduler.
    """
    if isinstance(vars(scheduler).get("step"), PortedStep):
        return
    if not (hasattr(scheduler, "timesteps") and callable(getattr(scheduler, "step", None))):
        raise PortError(
            f"a {type(scheduler).__name__} is no scheduler",
            where="scheduler",
            fix="give a scheduler of diffusers",
        )
    scheduler.step = PortedStep(scheduler)


def uninstall(scheduler: Any) -> None:
    """Give a scheduler its own `step` back; does nothing where it has it."""
    if isinstance(vars(scheduler).get("step"), PortedStep):
        del scheduler.step
