"""Read a diffusers scheduler's step off as tables: run on basis vectors, checked on random numbers.

Whatever the solver, a step that can be a row of a table is a linear map of the sample, the model's output, drawn noise
and the tensors that the scheduler keeps. So the scheduler is not written again here: a copy of it runs on the host
once, and what it does to each basis vector are the coefficients. A value that it clips or thresholds in between cuts
the step into two linear maps, one to this value and one from it, where it is a basis vector more. Then the copy runs
on random tensors, and a step that the table does not foretell is refused.
"""

import copy
import dataclasses
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from tpuport import compat
from tpuport.diffusion.scheduler_tables import Bound, StepTables, from_numpy
from tpuport.errors import PortError

logger = logging.getLogger("tpuport")

# How a step is run, and how far it may be from the table, in units of the sum of the absolute terms: in float64 all
# that is left is the rounding of the table itself; a scheduler that takes no float64 rounds as it pleases.
_PRECISIONS = ((torch.float64, 4 * 2.0**-24), (torch.float32, 256 * 2.0**-24))
# A list that grows with every step is cut down to what is read again.
_MANY_SLOTS = 6
_BOUNDED = "the bounded value"
_CLAMPS = (torch.clamp, torch.clip, torch.Tensor.clamp, torch.Tensor.clip)
# Rows of the check: ordinary numbers, numbers that any clipping would cut, and zero, which must stay zero.
_MAGNITUDES = torch.tensor([1.0, 1e3, 0.0]).reshape(3, 1, 1, 1)
_DISCOVERY = 8


@dataclasses.dataclass(frozen=True)
class Built:
    """A scheduler's tables, and what else a caller of its step expects.

    Attributes:
        tables: rows before the first step of the run are zeros.
        result: class of what `step` returns.
        returned: how many fields it returns as a tuple.
        draws: for each step the dtypes of the noise that it draws, None for the dtype of the model's output.
    """

    tables: StepTables
    result: type
    returned: int
    draws: tuple[tuple[torch.dtype | None, ...], ...]


@dataclasses.dataclass
class _Record:
    """One step on the host: tensors by name before and after, what was drawn, and the scaled model input."""

    before: dict[str, torch.Tensor]
    after: dict[str, torch.Tensor]
    fields: dict[str, torch.Tensor]
    noise: list[torch.Tensor]
    draws: tuple[torch.dtype | None, ...]
    scaled: torch.Tensor
    result: type
    bounded: list[tuple[Bound, torch.Tensor, torch.Tensor]]  # each with what was bounded, and the result


class _Watched(TorchFunctionMode):
    """Gives out our tensors where a scheduler draws normal noise, and takes note of what it bounds.

    Args:
        supply: from the number of the draw to noise.
        shape: of the sample; nothing else that is clamped matters.
        bounded: what to go on with in place of a bounded value; None for the value itself.
    """

    def __init__(
        self, supply: Callable[[int], torch.Tensor], shape: torch.Size, bounded: torch.Tensor | None
    ) -> None:
        super().__init__()
        self._supply, self._shape, self._instead = supply, shape, bounded
        self.noise: list[torch.Tensor] = []
        self.dtypes: list[torch.dtype | None] = []
        self.bounded: list[tuple[Bound, torch.Tensor, torch.Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _CLAMPS and args[0].shape == self._shape:
            low, high = (*args[1:], kwargs.get("min"), kwargs.get("max"))[:2]
            if not any(isinstance(x, torch.Tensor) for x in (low, high)):
                limits = [-math.inf if low is None else float(low), math.inf if high is None else float(high)]
                return self.bound(Bound("clamp", *limits), args[0], func(*args, **kwargs))
        if func not in (torch.randn, torch.randn_like):
            return func(*args, **kwargs)
        noise = self._supply(len(self.noise))
        wanted = kwargs.get("dtype") or (args[0].dtype if func is torch.randn_like else noise.dtype)
        self.noise.append(noise)
        self.dtypes.append(None if wanted == noise.dtype else wanted)
        return noise.to(wanted)

    def bound(self, bound: Bound, value: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
        """Take note of a value that is bounded; what the scheduler goes on with."""
        self.bounded.append((bound, value.clone(), result.clone()))
        return result if self._instead is None else self._instead.clone()

    def thresholding(self, twin: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        """In the place of the `_threshold_sample` of a scheduler."""
        own, config = type(twin)._threshold_sample, twin.config

        def threshold(sample: torch.Tensor) -> torch.Tensor:
            bound = Bound("threshold", config.dynamic_thresholding_ratio, config.sample_max_value)
            return self.bound(bound, sample, own(twin, sample))

        return threshold


def clone(scheduler: Any) -> Any:
    """A copy of a scheduler that shares nothing with it, its tensors on the host, its step diffusers' own."""
    twin = object.__new__(type(scheduler))
    for name, value in vars(scheduler).items():
        if name != "step":
            on_host = compat.to_torch(compat.as_jax(value)) if compat.is_ported(value) else value
            twin.__dict__[name] = copy.deepcopy(on_host)
    return twin


def build(scheduler: Any, start: int = 0, options: dict[str, Any] | None = None) -> Built:
    """Tables of a scheduler whose timesteps are set, for a run that starts at `timesteps[start]`.

    Args:
        scheduler: is not changed.
        start: a later start has other coefficients, because a multistep solver has no history then.
        options: further arguments of its `step`, such as eta.

    Raises:
        PortError: a step of it is no linear map, or cannot be run on the host.
    """
    options = dict(options or {})
    name = type(scheduler).__name__
    state = torch.random.get_rng_state()
    reasons = []
    with torch.no_grad():
        for dtype, tolerance in _PRECISIONS:
            try:
                return _build(scheduler, start, options, dtype, tolerance)
            except PortError:
                raise
            except _Nonlinear as error:
                reasons.append(str(error))
            except Exception as error:  # noqa: BLE001 - whatever diffusers raises is the reason to report
                reasons.append(
                    f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]
                )
            finally:
                torch.random.set_rng_state(state)
    raise PortError(
        f"{name} cannot step by a table: {reasons[-1]}",
        where=name,
        fix="take a scheduler whose step is a linear map, such as FlowMatchEulerDiscreteScheduler, "
        "DPMSolverMultistepScheduler or UniPCMultistepScheduler",
    )


class _Nonlinear(Exception):
    """The table does not foretell a step."""


def _build(
    scheduler: Any, start: int, options: dict[str, Any], dtype: torch.dtype, tolerance: float
) -> Built:
    generator = torch.Generator().manual_seed(0)

    def drawn(_: int = 0) -> torch.Tensor:
        # Values that float32 has, because some schedulers round their sample to it.
        return (torch.randn(3, 4, 2, 2, generator=generator) * _MAGNITUDES).to(dtype)

    inputs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def random(_: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs.append((drawn(), drawn()))
        return inputs[-1]

    records = list(_steps(scheduler, start, options, random, drawn))
    slots = _slots([*records, *_longer(scheduler, options, random, drawn)])
    inputs = inputs[: len(records)]
    fields = list(records[0].fields)
    noises = max(len(record.noise) for record in records)
    bound = _bound(records)
    rest = [*slots, *([] if bound is None else [_BOUNDED])]
    basis = 2 + noises + len(rest)
    coefficients = np.zeros((len(scheduler.timesteps), len(fields) + len(rest), basis))
    scales = np.ones(len(scheduler.timesteps))
    for place, probe in enumerate(_probes(scheduler, start, options, rest, noises, dtype), start):
        rows = _outputs(probe)
        for row, name in enumerate((*fields, *rest)):
            if name in rows:
                coefficients[place, row] = rows[name].reshape(basis).double().numpy()
        scales[place] = float(probe.scaled.reshape(basis)[0])
    finite = np.isfinite(coefficients).all(axis=(1, 2)) & np.isfinite(scales)
    if not finite.all():
        raise _Nonlinear(f"its own step gives infinite or no numbers at step {finite.argmin()}")
    for place, (record, (sample, output)) in enumerate(zip(records, inputs, strict=True), start):
        _check(record, sample, output, coefficients[place], scales[place], (fields, rest, noises), tolerance)
    if len(slots) > _MANY_SLOTS:
        coefficients, rest = _live(coefficients, rest, len(fields), 2 + noises)
        slots = [name for name in rest if name != _BOUNDED]
    return Built(
        from_numpy(scheduler.timesteps.cpu().numpy(), coefficients, scales, slots, fields, noises, bound),
        records[0].result,
        _returned(scheduler, start, options),
        ((),) * start + tuple(record.draws for record in records),
    )


def _steps(
    scheduler: Any,
    start: int,
    options: dict[str, Any],
    give: Callable[[dict[str, torch.Tensor]], tuple[torch.Tensor, torch.Tensor]],
    supply: Callable[[int], torch.Tensor],
    bounded: torch.Tensor | None = None,
) -> Iterator[_Record]:
    """Run a copy from `start` to its end; `give` takes the history and gives (sample, model output)."""
    twin = _at(scheduler, start)
    shape: tuple[int, ...] | None = None
    for timestep in twin.timesteps[start:]:
        history = _history(twin, shape)
        sample, output = give(history)
        for name, tensor in history.items():
            _put(twin, name, tensor)
        # Some schedulers change their tensors in place.
        before = {name: tensor.clone() for name, tensor in history.items()}
        scaled = twin.scale_model_input(sample, timestep) if hasattr(twin, "scale_model_input") else sample
        scaled = scaled.clone()
        drawing = _Watched(supply, sample.shape, bounded)
        if hasattr(twin, "_threshold_sample"):
            twin._threshold_sample = drawing.thresholding(twin)
        state = torch.random.get_rng_state()
        with drawing:
            result = twin.step(output.clone(), timestep, sample.clone(), **options, return_dict=True)
        if not torch.equal(state, torch.random.get_rng_state()):
            raise _Nonlinear("it draws random numbers that are not taken from torch.randn")
        shape = tuple(result.prev_sample.shape)
        after = {name: tensor.clone() for name, tensor in _history(twin, shape).items()}
        fields = {name: value for name, value in result.items() if isinstance(value, torch.Tensor)}
        drawn = tuple(drawing.dtypes)
        yield _Record(before, after, fields, drawing.noise, drawn, scaled, type(result), drawing.bounded)


def _bound(records: list[_Record]) -> Bound | None:
    """How the run's steps bound a value, the same one in all that do."""
    bounds = {bound for record in records for bound, *_ in record.bounded}
    if len(bounds) > 1 or any(len(record.bounded) > 1 for record in records):
        raise _Nonlinear("its steps bound several values")
    return next(iter(bounds), None)


def _outputs(record: _Record) -> dict[str, torch.Tensor]:
    """Everything that a step makes, by name."""
    outputs = record.fields | record.after
    for _, value, _ in record.bounded:
        outputs[_BOUNDED] = value
    return outputs


def _at(scheduler: Any, start: int) -> Any:
    """A copy that takes `timesteps[start]` for its first."""
    twin = clone(scheduler)
    if hasattr(twin, "_step_index"):
        twin._step_index = start
        twin._begin_index = start
    twin.is_scale_input_called = True
    return twin


def _history(twin: Any, shape: tuple[int, ...] | None) -> dict[str, torch.Tensor]:
    """The tensors of this shape that a scheduler keeps, by name; those of a list by their place from its end."""
    found: dict[str, torch.Tensor] = {}
    for name, value in vars(twin).items():
        if isinstance(value, list):
            held = {f"{name}.{place - len(value)}": item for place, item in enumerate(value)}
        else:
            held = {name: value}
        found |= {k: v for k, v in held.items() if isinstance(v, torch.Tensor) and tuple(v.shape) == shape}
    return found


def _put(twin: Any, name: str, tensor: torch.Tensor) -> None:
    attribute, _, place = name.partition(".")
    if place:
        getattr(twin, attribute)[int(place)] = tensor
    else:
        setattr(twin, attribute, tensor)


def _slots(records: list[_Record]) -> list[str]:
    """Names of the history, the same however few steps a run has: every place of a list that holds some."""
    longest: dict[str, int] = {}
    for record in records:
        for name in record.after:
            attribute, _, place = name.partition(".")
            longest[attribute] = max(longest.get(attribute, 0), -int(place or 0))
    return [
        name
        for attribute, length in sorted(longest.items())
        for name in ([f"{attribute}.{place}" for place in range(-length, 0)] if length else [attribute])
    ]


def _longer(scheduler: Any, options: dict[str, Any], give: Callable, supply: Callable) -> list[_Record]:
    """A few steps more than a short run has, which may not fill the whole history."""
    if len(scheduler.timesteps) >= _DISCOVERY:
        return []
    twin = clone(scheduler)
    try:
        twin.set_timesteps(_DISCOVERY)
        return list(_steps(twin, 0, options, give, supply))
    except Exception as error:  # noqa: BLE001 - then a short run and a long one are two programs, nothing worse
        logger.debug("history of %s is that of a short run: %s", type(scheduler).__name__, error)
        return []


def _probes(
    scheduler: Any, start: int, options: dict[str, Any], slots: list[str], noises: int, dtype: torch.dtype
) -> Iterator[_Record]:
    """The run on basis vectors, all of them at once: row b of a tensor of the batch is basis vector b."""
    size = 2 + noises + len(slots)
    one = lambda place: torch.eye(size, dtype=dtype)[place].reshape(size, 1, 1, 1)  # noqa: E731

    def give(history: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        for name in history:
            history[name] = one(2 + noises + slots.index(name))
        return one(0), one(1)

    return _steps(scheduler, start, options, give, lambda place: one(2 + place), one(size - 1))


def _check(
    record: _Record,
    sample: torch.Tensor,
    output: torch.Tensor,
    coefficients: np.ndarray,
    scale: float,
    names: tuple[list[str], list[str], int],
    tolerance: float,
) -> None:
    """Raises _Nonlinear where a row of the table is not what diffusers did with random numbers."""
    fields, slots, noises = names
    nothing = torch.zeros_like(sample)
    noise = [*record.noise, *[nothing] * (noises - len(record.noise))]
    known = dict(record.before)
    for bound, value, result in record.bounded:
        known[_BOUNDED] = result
        if not np.allclose(bound(jnp.asarray(value.float().numpy())), result.float(), rtol=1e-5, atol=1e-6):
            raise _Nonlinear(f"its {bound.kind} is not that of diffusers")
    history = [known.get(name, nothing) for name in slots]
    inputs = torch.stack([sample, output, *noise, *history]).double().numpy()
    outputs = _outputs(record)
    table = coefficients.astype(np.float32).astype(np.float64)
    for row, name in enumerate((*fields, *slots)):
        if name not in outputs:
            continue
        expected = np.tensordot(table[row], inputs, axes=1)
        bound = tolerance * np.tensordot(np.abs(table[row]), np.abs(inputs), axes=1)
        if not (np.abs(outputs[name].double().numpy() - expected) <= bound).all():
            raise _Nonlinear(f"its step is no linear map of the sample and the model's output ({name})")
    scaled = scale * sample.double()
    if not torch.allclose(record.scaled.double(), scaled, rtol=tolerance, atol=0):
        raise _Nonlinear("its scale_model_input is no multiplication")


def _returned(scheduler: Any, start: int, options: dict[str, Any]) -> int:
    """How many tensors its step gives where no class of diffusers is asked for."""
    twin = _at(scheduler, start)
    zero = torch.zeros(1, 4, 2, 2)
    return len(twin.step(zero, twin.timesteps[start], zero, **options, return_dict=False))


def _live(
    coefficients: np.ndarray, slots: list[str], fields: int, first: int
) -> tuple[np.ndarray, list[str]]:
    """The same tables without the history that no later output depends on."""
    used = np.abs(coefficients).sum(axis=0)[:, first:] > 0  # [O, slots]
    always = np.array([name == _BOUNDED for name in slots])
    live = used[:fields].any(axis=0) | always
    while (more := live | used[fields:][live].any(axis=0)).sum() > live.sum():
        live = more
    rows = np.concatenate([np.ones(fields, bool), live])
    columns = np.concatenate([np.ones(first, bool), live])
    return coefficients[:, rows][:, :, columns], [
        name for name, keep in zip(slots, live, strict=True) if keep
    ]
