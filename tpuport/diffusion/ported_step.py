"""A `step` of diffusers' schedulers on the device, which looks its row up in tables."""

import copy
import dataclasses
import functools
import inspect
import logging
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport import compat
from tpuport.base.mappings import without
from tpuport.base.plurals import count_noun
from tpuport.compilation import Program
from tpuport.diffusion.mixed_devices import suspend, to_host
from tpuport.diffusion.scheduler_probing import ProbedScheduler, probe_scheduler
from tpuport.diffusion.scheduler_tables import State, compute_outputs, initial_state
from tpuport.errors import PortError
from tpuport.hardware import process_watch
from tpuport.internals.diffusers_internals import (
    STEPS_ON_DEVICE,
    counts_steps,
    find_first_step,
    set_step_count,
)
from tpuport.internals.torch_internals import torch_pytree
from tpuport.objects.static_values import exact_key

logger = logging.getLogger("tpuport")

_PLAIN_TYPES = (bool, int, float, str, type(None))
# A pipeline that alternates between more kinds of runs probes its scheduler again.
_CACHED_PROBES = 8
# Arguments of a scheduler's step that tables handle; any other decides the
# coefficients.
_STEP_ARGUMENTS = frozenset(
    {"model_output", "timestep", "sample", "generator", "return_dict"}
)


@functools.cache
def step_program() -> Program:
    """The compiled step: a single compilation for each shape and kind of scheduler, for
    all of its steps.
    """
    return Program(compute_outputs, "scheduler step")


@dataclasses.dataclass
class _Run:
    """A run through the timesteps, from `set_timesteps` to the last step."""

    timesteps: Any = None  # the scheduler's own object: a new one means a new run; None before the first
    sigmas: Any = None
    probed: Any = None
    tables: Any = None
    options: Hashable = None
    next_index: int = -1
    state: State = ()

    def is_of(self, scheduler: Any) -> bool:
        """Whether the scheduler still has the timesteps that this run began with."""
        sigmas = getattr(scheduler, "sigmas", None)
        return self.timesteps is scheduler.timesteps and self.sigmas is sigmas


class _HostStepNeeded(Exception):
    """Why diffusers' own step must be taken, and not one by tables."""


class _Position(NamedTuple):
    """A step's row in the tables, which is its index in the run, and whether the run
    starts with it.
    """

    row: int
    is_first: bool


class PortedStep:
    """Replaces `scheduler.step`: takes tensors of the host or the device, gives tensors
    on the device.

    The first step of a run builds the tables, on the host, unless they are cached. The
    history, which a scheduler's own `step` would store in the scheduler, is stored
    here; `step_index` is updated in both.

    A call that tables cannot serve (a step that is not a linear map, a tensor among its
    options, such as the timesteps of single tokens) goes to diffusers' own step on the
    host, which is logged once.

    Attributes:
        original: diffusers' own step.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler: Any = scheduler
        # The class's, because the instance's is about to be this object.
        self.original = type(scheduler).step.__get__(scheduler)
        # Pipelines look at which arguments a scheduler's step takes.
        self.__signature__ = inspect.signature(self.original)
        self._probed: dict[Hashable, ProbedScheduler | PortError] = {}
        self._run = _Run()
        # Once for each reason, and not in every step.
        self._log_reason = functools.cache(self._warn_of_host_step)

    def __deepcopy__(self, memo: dict[int, Any]) -> "PortedStep":
        return PortedStep(copy.deepcopy(self._scheduler, memo))

    def __reduce__(self) -> tuple[type, tuple[Any]]:
        return PortedStep, (self._scheduler,)

    @property
    def _name(self) -> str:
        return f"{type(self._scheduler).__name__}.step"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A step, with the arguments and the result of diffusers' own.

        Raises:
            PortError: the scheduler's step_index was moved within a run, or a run with
                history cannot continue on the device.
        """
        bound = self.__signature__.bind(*args, **kwargs)
        # An option that is left out decides the coefficients as one that is passed.
        bound.apply_defaults()
        with suspend():
            return self._serve(bound.arguments)

    def _serve(self, arguments: dict[str, Any]) -> Any:
        try:
            row = self._find_row(arguments)
        except _HostStepNeeded as needed:
            reason = str(needed)
        else:
            return self._step_on_device(row, arguments)
        # Outside of the handler, so that what diffusers raises has no other error as
        # its context.
        return self._step_on_host(arguments, reason)

    def _find_row(self, arguments: dict[str, Any]) -> int:
        """The step's row in the tables of the run, which begins here if this is its
        first step.
        """
        self._check_arguments(arguments)
        position = self._locate(arguments["timestep"])
        if position.is_first:
            # Whatever was before is over, even if this run cannot begin.
            self._run = _Run()
            self._run = self._begin_run(position.row, arguments)
        elif exact_key(_step_options(arguments)) != self._run.options:
            raise _HostStepNeeded("its options change within a run")
        return position.row

    def _check_arguments(self, arguments: dict[str, Any]) -> None:
        """Raise _HostStepNeeded for arguments that only diffusers' own step takes."""
        if not STEPS_ON_DEVICE.works():
            raise _HostStepNeeded("diffusers counts steps in another way")
        # Classes outside of diffusers may name their arguments otherwise.
        output, sample = arguments.get("model_output"), arguments.get("sample")
        if not (isinstance(output, torch.Tensor) and isinstance(sample, torch.Tensor)):
            raise _HostStepNeeded("its arguments are not a model's output and a sample")
        if output.shape != sample.shape:
            shapes = f"the model's output is {tuple(output.shape)} and the sample {tuple(sample.shape)}"
            raise _HostStepNeeded(shapes)
        if not (output.is_floating_point() and sample.is_floating_point()):
            raise _HostStepNeeded("its tensors do not hold real numbers")
        if (
            _is_whole(arguments.get("timestep"))
            and self._scheduler.timesteps.is_floating_point()
        ):
            # An index instead of a timestep, for which most classes raise an error of
            # their own.
            raise _HostStepNeeded("its timesteps are not whole numbers")
        options = _step_options(arguments)
        others = [
            name
            for name, value in options.items()
            if not isinstance(value, _PLAIN_TYPES)
        ]
        if others:
            raise _HostStepNeeded(f"{', '.join(others)} cannot be in a table")

    def _locate(self, timestep: Any) -> _Position:
        """Which row of the tables this step is, by the scheduler's own count."""
        scheduler, run = self._scheduler, self._run
        is_running = run.is_of(scheduler)
        if not counts_steps(scheduler):
            return self._locate_by_timestep(timestep, is_running)
        index: Any = scheduler.step_index
        if index is None:
            is_running = False
            find_first_step(scheduler, to_host(timestep))
            index = scheduler.step_index
        is_next = is_running and index == run.next_index
        # Without history any step may follow, and the tables of a new run serve it.
        if is_running and run.tables.slots and not is_next:
            raise PortError(
                f"step_index went from {run.next_index} to {index} within a run, whose steps so far are its history",
                where=self._name,
                fix="call set_timesteps before another run, or tpuport.diffusion.schedulers.uninstall(scheduler)",
            )
        return _Position(index, is_first=not is_next)

    def _locate_by_timestep(self, timestep: Any, is_running: bool) -> _Position:
        """As `_locate`, for a scheduler that does not count its steps."""
        value, next_index = float(to_host(timestep)), self._run.next_index
        known = self._scheduler.timesteps.tolist()
        if is_running and known[next_index : next_index + 1] == [value]:
            return _Position(next_index, is_first=False)
        if value not in known:
            # diffusers' own step on the host raises the error that its users know,
            # whatever the run before was.
            self._run = _Run()
            raise _HostStepNeeded("this timestep is not one of the scheduler's")
        return _Position(known.index(value), is_first=True)

    def _begin_run(self, index: int, arguments: dict[str, Any]) -> _Run:
        """A run that starts at this index."""
        scheduler = self._scheduler
        if index >= len(scheduler.timesteps):
            raise _HostStepNeeded("this timestep is not one of the scheduler's")
        options = _step_options(arguments)
        probed = self._probe(index, options)
        if isinstance(probed, PortError):
            raise _HostStepNeeded(probed.what)
        tables = probed.tables.padded()
        return _Run(
            timesteps=scheduler.timesteps,
            sigmas=getattr(scheduler, "sigmas", None),
            probed=probed,
            tables=tables,
            options=exact_key(options),
            next_index=index,
            state=initial_state(tables, compat.to_jax(arguments["sample"])),
        )

    def _probe(
        self, start: int, options: dict[str, Any]
    ) -> ProbedScheduler | PortError:
        """The tables of a run, or why there are none; either is cached."""
        scheduler = self._scheduler
        config = exact_key(dict(scheduler.config))
        sigmas = getattr(scheduler, "sigmas", None)
        # By contents, because set_timesteps makes new tensors for every run.
        key = (
            start,
            exact_key(options),
            config,
            _contents_key(scheduler.timesteps),
            _contents_key(sigmas),
        )
        if key not in self._probed:
            if len(self._probed) >= _CACHED_PROBES:
                oldest = next(iter(self._probed))
                del self._probed[oldest]
            # An error is cached too, so that a step on the host is not probed again
            # each time.
            try:
                self._probed[key] = probe_scheduler(scheduler, start, options)
            except PortError as error:
                self._probed[key] = error
        return self._probed[key]

    def _step_on_device(self, index: int, arguments: dict[str, Any]) -> Any:
        run = self._run
        if index >= len(run.timesteps):
            raise PortError(
                f"the scheduler has {count_noun(len(run.timesteps), 'timestep')}, and there is no further one",
                where=self._name,
                fix="call set_timesteps before another run",
            )
        output, sample = (
            compat.to_jax(arguments["model_output"]),
            compat.to_jax(arguments["sample"]),
        )
        noise = self._draw_noise(run, index, arguments, sample)
        fields, run.state = step_program()(
            run.tables, np.int32(index), output, sample, run.state, noise
        )
        run.next_index = index + 1
        # Pipelines read the scheduler's step_index.
        if counts_steps(self._scheduler):
            set_step_count(self._scheduler, index + 1)
        _enter_next_stage(self._scheduler, arguments["sample"])
        # In the order in which diffusers' output has its fields.
        tensors = dict(zip(run.tables.fields, compat.as_torch(fields), strict=True))
        if arguments.get("return_dict", True):
            return run.probed.output_class(**tensors)
        return tuple(tensors.values())[: run.probed.tuple_length]

    @staticmethod
    def _draw_noise(
        run: _Run, index: int, arguments: dict[str, Any], sample: jax.Array
    ) -> tuple[jax.Array, ...]:
        """Normal noise as diffusers would draw it, on the host: the same numbers for
        the same generator.
        """
        from diffusers.utils.torch_utils import randn_tensor

        output, generator = arguments["model_output"], arguments.get("generator")
        noise = []
        for dtype in run.probed.noise_dtypes[index]:
            tensor = randn_tensor(
                tuple(output.shape),
                generator=generator,
                device=torch.device("cpu"),
                dtype=dtype or output.dtype,
            )
            noise.append(compat.to_jax(tensor))
        # A step that draws less than others has zero coefficients for what it does not
        # draw.
        missing = run.tables.noises - len(noise)
        return (*noise, *[jnp.zeros_like(sample, dtype=jnp.float32)] * missing)

    def _step_on_host(self, arguments: dict[str, Any], reason: str) -> Any:
        """diffusers' own step on the host; its tensors are moved back to the device if
        the sample was there.
        """
        scheduler, run = self._scheduler, self._run
        if run.state:
            raise PortError(
                f"{reason}, and the history of this run is on the device",
                where=self._name,
                fix="give every step of a run the same options, or tpuport.diffusion.schedulers.uninstall(scheduler)",
            )
        self._log_reason(reason)
        result = self.original(
            **{name: to_host(value) for name, value in arguments.items()}
        )
        if counts_steps(scheduler):
            run.next_index = scheduler.step_index
        sample: Any = arguments.get("sample")
        if not compat.is_ported(sample):
            return result
        sharding = compat.as_jax(sample).sharding

        def to_device(tensor: torch.Tensor) -> torch.Tensor:
            return compat.wrap(
                process_watch.put(compat.to_jax(tensor), sharding), tensor.dtype
            )

        # diffusers registers its outputs as trees of torch.
        return torch_pytree.tree_map_only(torch.Tensor, to_device, result)

    def _warn_of_host_step(self, reason: str) -> None:
        logger.warning("%s runs on the host: %s", self._name, reason)


def _enter_next_stage(scheduler: Any, sample: torch.Tensor) -> None:
    """Let a scheduler of two stages (KDPM2) know which comes next: it scales the
    model's input accordingly.

    Such a scheduler has a sample between its stages only.
    """
    if hasattr(scheduler, "sigmas_interpol"):
        scheduler.sample = sample if scheduler.state_in_first_order else None


def _step_options(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a step that decide its coefficients, such as eta."""
    return without(arguments, _STEP_ARGUMENTS)


def _is_whole(timestep: Any) -> bool:
    if isinstance(timestep, torch.Tensor):
        return not timestep.is_floating_point()
    return isinstance(timestep, int)


def _contents_key(tensor: Any) -> Hashable:
    """A key of a tensor's dtype and values; None for anything else."""
    if not isinstance(tensor, torch.Tensor):
        return None
    host = to_host(tensor).detach().contiguous()
    return str(host.dtype), host.view(-1).numpy().tobytes()
