"""Turn a diffusers scheduler's step into tables: run it on basis vectors, check the
tables on random numbers.

Whatever the solver, a step that can be a row of a table is a linear map of the sample,
the model's output, drawn noise and the tensors that the scheduler remembers. So no
scheduler is reimplemented: a copy of it runs on the host once, and what it does to each
basis vector are the coefficients. A value that it clips or thresholds in between cuts
the step into two linear maps, the first to this value and the second from it, for which
it is an additional basis vector. Then the copy runs on random tensors, and a step that
the table does not predict is refused.
"""

import copy
import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from tpuport.diffusion.mixed_devices import to_host
from tpuport.diffusion.scheduler_tables import Bound, StepTables, from_numpy
from tpuport.diffusion.step_records import BOUNDED, StepMode, StepRecord, TableLayout
from tpuport.errors import PortError
from tpuport.internals.diffusers_internals import (
    counts_steps,
    has_threshold,
    replace_threshold,
    start_at,
)

logger = logging.getLogger("tpuport")

# The dtypes to probe in, and how far a step may be from the table, in units of the sum
# of the absolute terms. In float64 all that is left is the rounding of the table
# itself; a scheduler that takes no float64 rounds as it pleases.
_PRECISIONS = ((torch.float64, 4 * 2.0**-24), (torch.float32, 256 * 2.0**-24))
# A longer history, such as a list that grows with every step, is reduced to what is
# read again.
_MAX_SLOTS = 6
# Rows of the check: ordinary numbers, numbers that any clipping would cut, and zero,
# which must stay zero.
_MAGNITUDES = torch.tensor([1.0, 1e3, 0.0]).reshape(3, 1, 1, 1)
# Steps of a run that fills the whole history of any solver.
_HISTORY_STEPS = 8


@dataclasses.dataclass(frozen=True)
class ProbedScheduler:
    """A scheduler's tables, and what else a caller of its step expects.

    Attributes:
        tables: rows before the first step of the run are zeros.
        output_class: class of what `step` returns.
        tuple_length: how many fields it returns as a tuple.
        noise_dtypes: for each step the dtypes of the noise that it draws, None for the
            dtype of the model's output.
    """

    tables: StepTables
    output_class: type
    tuple_length: int
    noise_dtypes: tuple[tuple[torch.dtype | None, ...], ...]


def clone_scheduler(scheduler: Any) -> Any:
    """A copy of a scheduler that shares nothing with it, its tensors on the host, its
    step diffusers' own.
    """
    clone = object.__new__(type(scheduler))
    # On the instance there is only tpuport's step.
    attributes = {
        name: to_host(value)
        for name, value in vars(scheduler).items()
        if name != "step"
    }
    clone.__dict__.update(copy.deepcopy(attributes))
    return clone


def probe_scheduler(
    scheduler: Any, start: int = 0, options: dict[str, Any] | None = None
) -> ProbedScheduler:
    """Tables of a scheduler whose timesteps are set, for a run that starts at
    `timesteps[start]`.

    Args:
        scheduler: is not changed.
        start: a later start has other coefficients, because a multistep solver has no
            history then.
        options: further arguments of its `step`, such as eta.

    Raises:
        PortError: one of its steps is not a linear map, or cannot be run on the host.
    """
    name = type(scheduler).__name__
    random_state = torch.random.get_rng_state()
    reason = ""
    with torch.no_grad():
        for dtype, tolerance in _PRECISIONS:
            try:
                return _Probe(scheduler, start, dict(options or {}), dtype).run(
                    tolerance
                )
            except PortError:
                raise
            except _Nonlinear as error:
                reason = str(error)
            except Exception as error:  # noqa: BLE001 - whatever diffusers raises is the reason to report
                text = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
                reason = text.splitlines()[0]
            finally:
                torch.random.set_rng_state(random_state)
    raise PortError(
        f"{name} cannot step by a table: {reason}",
        where=name,
        fix="take a scheduler whose step is a linear map, such as FlowMatchEulerDiscreteScheduler, "
        "DPMSolverMultistepScheduler or UniPCMultistepScheduler",
    )


class _Nonlinear(Exception):
    """The table does not predict a step."""


class _Probe:
    """The runs of a scheduler's copies from which its tables are built."""

    def __init__(
        self, scheduler: Any, start: int, options: dict[str, Any], dtype: torch.dtype
    ) -> None:
        self.scheduler, self.start, self.options, self.dtype = (
            scheduler,
            start,
            options,
            dtype,
        )
        self._generator = torch.Generator().manual_seed(0)

    def run(self, tolerance: float) -> ProbedScheduler:
        timesteps = self.scheduler.timesteps
        records = list(self._random_steps(self.scheduler, self.start))
        history = _history_names([*records, *self._longer_run()])
        noises = max(len(record.noise) for record in records)
        layout = TableLayout(
            list(records[0].fields), history, noises, _find_bound(records)
        )
        coefficients = np.zeros((len(timesteps), len(layout.rows), layout.columns))
        scales = np.ones(len(timesteps))
        for index, record in enumerate(self._basis_steps(layout), self.start):
            for row, output in record.outputs(layout):
                coefficients[index, row] = (
                    output.reshape(layout.columns).double().numpy()
                )
            scales[index] = float(record.scaled.reshape(layout.columns)[0])
        is_finite = np.isfinite(coefficients).all(axis=(1, 2)) & np.isfinite(scales)
        if not is_finite.all():
            raise _Nonlinear(
                f"its own step gives infinite numbers or NaN at step {is_finite.argmin()}"
            )
        for index, record in enumerate(records, self.start):
            _check_prediction(
                record, coefficients[index], scales[index], layout, tolerance
            )
        if len(history) > _MAX_SLOTS:
            coefficients, history = _drop_unused_history(coefficients, layout)
        numbers = timesteps.cpu().numpy()
        tables = from_numpy(
            numbers, coefficients, scales, history, layout.fields, noises, layout.bound
        )
        steps_before: tuple = ((),) * self.start
        noise_dtypes = steps_before + tuple(record.noise_dtypes for record in records)
        return ProbedScheduler(
            tables, records[0].output_class, self._count_fields(), noise_dtypes
        )

    def _draw(self, _: int = 0) -> torch.Tensor:
        # In float32 first, because some schedulers round their sample to it.
        return (torch.randn(3, 4, 2, 2, generator=self._generator) * _MAGNITUDES).to(
            self.dtype
        )

    def _random_steps(self, scheduler: Any, start: int) -> Iterator[StepRecord]:
        """A run on random samples and model outputs."""
        return self._steps(
            scheduler, start, lambda history: (self._draw(), self._draw()), self._draw
        )

    def _basis_steps(self, layout: TableLayout) -> Iterator[StepRecord]:
        """The run on basis vectors, all of them at once: row b of a tensor of the batch
        is basis vector b.
        """
        size = layout.columns
        identity = torch.eye(size, dtype=self.dtype)

        def basis(column: int) -> torch.Tensor:
            # A copy, because some schedulers add to their tensors in place.
            return identity[column].clone().reshape(size, 1, 1, 1)

        def set_inputs(
            history: dict[str, torch.Tensor],
        ) -> tuple[torch.Tensor, torch.Tensor]:
            for name in history:
                history[name] = basis(layout.first_slot + layout.slots.index(name))
            return basis(0), basis(1)

        supply = lambda number: basis(2 + number)  # noqa: E731
        replace = lambda result: basis(size - 1)  # noqa: E731
        return self._steps(self.scheduler, self.start, set_inputs, supply, replace)

    def _longer_run(self) -> list[StepRecord]:
        """A few steps more than a short run has, which may not fill the whole
        history.
        """
        if len(self.scheduler.timesteps) >= _HISTORY_STEPS:
            return []
        clone = clone_scheduler(self.scheduler)
        try:
            clone.set_timesteps(_HISTORY_STEPS)
            return list(self._random_steps(clone, 0))
        except Exception as error:  # noqa: BLE001 - then a short run and a long one are two programs, nothing worse
            logger.debug(
                "history of %s is that of a short run: %s", type(clone).__name__, error
            )
            return []

    def _steps(
        self,
        scheduler: Any,
        start: int,
        set_inputs: Callable[
            [dict[str, torch.Tensor]], tuple[torch.Tensor, torch.Tensor]
        ],
        supply: Callable[[int], torch.Tensor],
        replace: Callable[..., torch.Tensor] = lambda result: result,
    ) -> Iterator[StepRecord]:
        """Run a copy from `start` to its end.

        Args:
            set_inputs: may replace tensors of the history; gives (sample, model
                output).
            supply: from the number of a draw to noise.
            replace: from a bounded value to what takes its place.
        """
        clone = _clone_at(scheduler, start)
        shape: tuple[int, ...] | None = None
        for timestep in clone.timesteps[start:]:
            history = _read_history(clone, shape)
            sample, model_output = set_inputs(history)
            for name, tensor in history.items():
                _write_history(clone, name, tensor)
            before = _read_history(clone, shape)
            scaled = sample
            if hasattr(clone, "scale_model_input"):
                scaled = clone.scale_model_input(sample, timestep)
            scaled = scaled.clone()
            mode = StepMode(supply, sample.shape, replace)
            if has_threshold(clone):
                replace_threshold(clone, mode.thresholding(clone))
            random_state = torch.random.get_rng_state()
            with mode:
                output = clone.step(
                    model_output.clone(),
                    timestep,
                    sample.clone(),
                    **self.options,
                    return_dict=True,
                )
            if not torch.equal(random_state, torch.random.get_rng_state()):
                raise _Nonlinear(
                    "it draws random numbers that are not taken from torch.randn"
                )
            shape = tuple(output.prev_sample.shape)
            yield StepRecord(
                sample=sample,
                model_output=model_output,
                before=before,
                after=_read_history(clone, shape),
                fields={
                    name: value
                    for name, value in output.items()
                    if isinstance(value, torch.Tensor)
                },
                noise=mode.noise,
                noise_dtypes=tuple(mode.dtypes),
                scaled=scaled,
                output_class=type(output),
                bounded=mode.bounded,
            )

    def _count_fields(self) -> int:
        """How many tensors its step returns as a tuple."""
        clone = _clone_at(self.scheduler, self.start)
        zero = torch.zeros(1, 4, 2, 2)
        return len(
            clone.step(
                zero,
                clone.timesteps[self.start],
                zero,
                **self.options,
                return_dict=False,
            )
        )


def _find_bound(records: list[StepRecord]) -> Bound | None:
    """How the run's steps bound a value, the same in all that do."""
    bounds = {tuple(bounded.bound for bounded in record.bounded) for record in records}
    # A step that bounds nothing has none.
    if sum(map(len, bounds)) > 1:
        raise _Nonlinear("its steps bound several values")
    return next(itertools.chain.from_iterable(bounds), None)


def _clone_at(scheduler: Any, start: int) -> Any:
    """A copy whose first step is at `timesteps[start]`."""
    clone = clone_scheduler(scheduler)
    if counts_steps(clone):
        start_at(clone, start)
    # Without it some schedulers warn that their scale_model_input was not called.
    clone.is_scale_input_called = True
    return clone


def _read_history(
    scheduler: Any, shape: tuple[int, ...] | None
) -> dict[str, torch.Tensor]:
    """Copies of the tensors of this shape that a scheduler remembers, which some
    schedulers change in place.

    By name; those of a list by their index from its end.
    """
    candidates: dict[str, Any] = dict(vars(scheduler))
    candidates |= {
        f"{name}.{index}": value[index]
        for name, value in vars(scheduler).items()
        if isinstance(value, list)
        for index in range(-len(value), 0)
    }
    return {
        name: value.clone()
        for name, value in candidates.items()
        if isinstance(value, torch.Tensor) and value.shape == shape
    }


def _write_history(scheduler: Any, name: str, tensor: torch.Tensor) -> None:
    attribute, _, index = name.partition(".")
    if index:
        getattr(scheduler, attribute)[int(index)] = tensor
    else:
        setattr(scheduler, attribute, tensor)


def _history_names(records: list[StepRecord]) -> list[str]:
    """Names of the history, the same however few steps a run has: every index of a list
    that holds tensors.
    """
    longest: dict[str, int] = {}
    for record in records:
        for name in record.after:
            attribute, _, index = name.partition(".")
            longest[attribute] = max(longest.get(attribute, 0), -int(index or 0))
    names: list[str] = []
    for attribute, length in sorted(longest.items()):
        # An attribute that is not a list has no indices, and is a slot itself.
        names += [f"{attribute}.{index}" for index in range(-length, 0)] or [attribute]
    return names


def _check_prediction(
    record: StepRecord,
    coefficients: np.ndarray,
    scale: float,
    layout: TableLayout,
    tolerance: float,
) -> None:
    """Raise _Nonlinear if a row of the table does not predict what diffusers did with
    random numbers.
    """
    zeros = torch.zeros_like(record.sample)
    history = dict(record.before)
    for bound, value, result in record.bounded:
        history[BOUNDED] = result
        expected = bound(jnp.asarray(value.float().numpy()))
        if not np.allclose(expected, result.float(), rtol=1e-5, atol=1e-6):
            raise _Nonlinear(f"its {bound.kind} is not that of diffusers")
    noise = [*record.noise, *[zeros] * (layout.noises - len(record.noise))]
    slots = [history.get(name, zeros) for name in layout.slots]
    inputs = (
        torch.stack([record.sample, record.model_output, *noise, *slots])
        .double()
        .numpy()
    )
    # Rounded to float32, as the tables on the device are.
    table = coefficients.astype(np.float32).astype(np.float64)
    for row, output in record.outputs(layout):
        error = np.abs(
            output.double().numpy() - np.tensordot(table[row], inputs, axes=1)
        )
        limit = tolerance * np.tensordot(np.abs(table[row]), np.abs(inputs), axes=1)
        # Negated, because a comparison with NaN is false.
        if not (error <= limit).all():
            name = layout.rows[row]
            raise _Nonlinear(
                f"its step is not a linear map of the sample and the model's output ({name})"
            )
    expected_scaled = scale * record.sample.double()
    if not torch.allclose(
        record.scaled.double(), expected_scaled, rtol=tolerance, atol=0
    ):
        raise _Nonlinear("its scale_model_input is not a multiplication")


def _drop_unused_history(
    coefficients: np.ndarray, layout: TableLayout
) -> tuple[np.ndarray, list[str]]:
    """The same tables without the history that no later output depends on."""
    fields, first = len(layout.fields), layout.first_slot
    is_read = np.abs(coefficients).sum(axis=0)[:, first:] > 0  # [O, slots]
    live = is_read[:fields].any(axis=0)
    # The bounded value is not a history, and stays.
    live[len(layout.history) :] = True
    # A slot is live if an output depends on it, or a slot that is live.
    for _ in layout.slots:
        live |= is_read[fields:][live].any(axis=0)
    rows = np.concatenate([np.ones(fields, bool), live])
    columns = np.concatenate([np.ones(first, bool), live])
    return coefficients[:, rows][:, :, columns], list(
        itertools.compress(layout.history, live)
    )
