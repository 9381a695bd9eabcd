"""The compiled denoising loop of a ported model: model, guidance and scheduler in a
single program.

Shapes: B batch of the latents, N denoising steps.
"""

import dataclasses
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuport import compat, trace_errors
from tpuport.compat import randomness
from tpuport.compilation import (
    Program,
    check_constants,
    collect_weights,
    rotary,
    settings_key,
    use_weights_in_loop,
)
from tpuport.diffusion.scheduler_tables import StepTables, take_step
from tpuport.errors import PortError
from tpuport.hardware import process_watch
from tpuport.hardware.mesh import dividing_axis
from tpuport.objects import pytrees
from tpuport.objects.static_values import StaticValue

# What models call the latents, and the timestep.
_SAMPLE_NAMES = ("hidden_states", "sample", "x")
_TIME_NAMES = ("timestep", "timesteps", "t")
# Functions that a user's function refers to, and those that these refer to, are
# followed this deep.
_MAX_DEPTH = 4
# In messages.
_LOOP = "the loop over the denoising steps"


class Carry(NamedTuple):
    """What a step hands to the next: latents in their dtype, the scheduler's history in
    float32.
    """

    latents: jax.Array
    state: tuple[jax.Array, ...]


class ModelCall(NamedTuple):
    """A call of the model in a step.

    Attributes:
        tree: the tree of its conditions.
        repeats: how many copies of the latents it takes, concatenated.
        leaves: for each leaf of the tree its plain value, or for a tensor "rows" if it
            has the batch's rows, else "whole".
    """

    tree: Any
    repeats: int
    leaves: tuple[str | StaticValue, ...]


class LoopSettings(NamedTuple):
    """What a program depends on besides shapes."""

    calls: tuple[ModelCall, ...]
    model_input: Hashable
    guidance: Hashable
    is_guided: bool
    is_rescaled: bool
    timestep_scale: float
    timestep_dtype: str


class Inputs(NamedTuple):
    """Arrays of a program: tensors of each call's conditions, those of the user's
    functions, numbers.
    """

    conditions: list[list[jax.Array]]
    function_tensors: list[jax.Array]
    guidance_scale: np.float32
    guidance_rescale: np.float32


class Denoiser:
    """The compiled loop of a ported model.

    Steps `start` to `stop` are traced numbers and the tables are padded, so that a
    warm-up of two steps, a run of fifty, and the same run step by step for a progress
    bar are a single compilation.

    Attributes:
        program: `Program`; its `compilations` count.
    """

    def __init__(self, model: Any) -> None:
        pytrees.register()
        # Weakly, because the model is what keeps its programs alive.
        self._model = weakref.ref(model)
        self.mesh: Mesh = model.tpuport_mesh
        self.parameters = inspect.signature(model.forward).parameters
        names = list(self.parameters)
        self.sample_name = next(
            (name for name in _SAMPLE_NAMES if name in names), names[0]
        )
        self.time_name = next((name for name in _TIME_NAMES if name in names), None)
        self._rotary = rotary.ProgramTables()
        name = f"{type(model).__name__} denoising"
        # The carry is donated, because every call returns a new one.
        self.program = Program(self._trace_steps, name, donated=(1,))

    @property
    def model(self) -> Any:
        """The ported model."""
        return self._model()

    def collect_arrays(
        self,
        latents: jax.Array,
        tables: StepTables,
        inputs: Inputs,
        settings: LoopSettings,
    ) -> dict[str, Any]:
        """The model's weights, and its rotary tables for these inputs, by name."""

        def predict(
            weights: list[dict[str, Any]], latents: jax.Array, inputs: Inputs
        ) -> jax.Array:
            # Of the first step: positions are the same in all of them.
            return self._predict(
                weights[0], latents, tables, jnp.int32(0), inputs, settings
            )

        key = (settings, _shapes_key((latents, inputs)))
        weights = [collect_weights(self.model)]
        [arrays] = self._rotary.add_to(
            weights, key, [self.model], predict, latents, inputs
        )
        return arrays

    def check(
        self,
        arrays: dict[str, Any],
        carry: Carry,
        tables: StepTables,
        inputs: Inputs,
        settings: LoopSettings,
    ) -> None:
        """Capture a new program; PortError if that fails, or if a weight of a model
        would be a constant.
        """
        step = np.int32(1)
        with trace_errors.explained(self.model, catch=trace_errors.is_of_code):
            program = self.program.program_of(
                arrays, carry, tables, step, step, inputs, settings=settings
            )
        check_constants(self.program.name, list(program.captured.program.consts))

    def _trace_steps(
        self,
        arrays: dict[str, jax.Array],
        carry: Carry,
        tables: StepTables,
        start: jax.Array,
        stop: jax.Array,
        inputs: Inputs,
        *,
        settings: LoopSettings,
    ) -> tuple[Carry, jax.Array]:
        """Traced. Steps `start` to `stop`, and a number that is there when they are
        done.
        """

        def step(index: jax.Array, carry: Carry) -> Carry:
            with randomness.iteration(index):
                output = self._predict(
                    arrays, carry.latents, tables, index, inputs, settings
                )
            latents, state = take_step(
                tables, index, output, carry.latents, carry.state
            )
            # A loop's carry has one layout, which must not be left to the compiler.
            return Carry(self.shard_rows(latents), tuple(map(self.shard_rows, state)))

        # The carry is donated to the next call, so the host waits for another output.
        return jax.lax.fori_loop(start, stop, step, carry), stop + 0

    def _predict(
        self,
        arrays: dict[str, jax.Array],
        latents: jax.Array,
        tables: StepTables,
        index: jax.Array,
        inputs: Inputs,
        settings: LoopSettings,
    ) -> jax.Array:
        """Traced. The model's output for the scheduler, [B, ...], guided in float32."""
        hidden = (latents * tables.scales[index]).astype(latents.dtype)
        timestep = tables.timesteps[index] * settings.timestep_scale
        timestep = timestep.astype(settings.timestep_dtype)
        model_input = lower_function(settings.model_input, inputs.function_tensors)
        guidance = lower_function(settings.guidance, inputs.function_tensors)
        with use_weights_in_loop(self.model, arrays, _LOOP):
            hidden = compat.as_jax(model_input(compat.wrap(hidden)))
            outputs: list[jax.Array] = []
            for tensors, call in zip(inputs.conditions, settings.calls, strict=True):
                output = self._call_model(hidden, timestep, tensors, call)
                _check_output(output, (call.repeats * len(latents), *latents.shape[1:]))
                outputs += jnp.split(output, call.repeats)
            if not settings.is_guided:
                return outputs[0]
            # In the order of the branches, whether they were one call or two.
            negative, positive = outputs
            if guidance is not None:
                guided = compat.as_jax(
                    guidance(compat.wrap(positive), compat.wrap(negative))
                )
                _check_output(guided, latents.shape)
                return guided
        return _guide(positive, negative, inputs, is_rescaled=settings.is_rescaled)

    def _call_model(
        self,
        hidden: jax.Array,
        timestep: jax.Array,
        tensors: list[jax.Array],
        call: ModelCall,
    ) -> jax.Array:
        """Traced. A call of the model; the batch of the conditions may be twice that of
        the latents.
        """
        remaining = iter(tensors)
        values = []
        for leaf in call.leaves:
            match leaf:
                case StaticValue():
                    values.append(leaf.value)
                case "rows":
                    values.append(compat.wrap(self.shard_rows(next(remaining))))
                case "whole":
                    values.append(compat.wrap(next(remaining)))
        arguments = jax.tree_util.tree_unflatten(call.tree, values)
        hidden = self.shard_rows(jnp.concatenate([hidden] * call.repeats))
        arguments[self.sample_name] = compat.wrap(hidden)
        # Models embed a timestep for each row.
        if self.time_name is not None:
            arguments[self.time_name] = compat.wrap(
                jnp.broadcast_to(timestep, (hidden.shape[0],))
            )
        if "return_dict" in self.parameters:
            arguments["return_dict"] = False
        output = self.model(**arguments)
        # A tuple, an output of diffusers, or the tensor itself from the user's own
        # model.
        if isinstance(output, tuple | list):
            output = output[0]
        return compat.as_jax(getattr(output, "sample", output))

    def sharding(self, shape: tuple[int, ...]) -> NamedSharding:
        """The batch over dp if that divides it, everything else whole on each
        device.
        """
        entries = [dividing_axis(self.mesh, "dp", rows) for rows in shape[:1]]
        return NamedSharding(self.mesh, PartitionSpec(*entries))

    def shard_rows(self, array: jax.Array) -> jax.Array:
        """Traced. An array with the layout of `sharding`."""
        if self.mesh.size == 1:
            return array
        return jax.lax.with_sharding_constraint(array, self.sharding(array.shape))

    def put(self, array: jax.Array, *, has_rows: bool = True) -> jax.Array:
        """An array on the devices of the mesh: its rows over dp, or whole on each."""
        return process_watch.put(array, self.sharding(array.shape[:has_rows]))


def _shapes_key(tree: Any) -> Hashable:
    return tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(tree))


def _check_output(output: jax.Array, shape: tuple[int, ...]) -> None:
    if output.shape != shape:
        raise PortError(
            f"the model gives {output.shape}, and the scheduler needs {shape}",
            where="the model's output",
            fix="give latents of the model's output shape, and the rest of its input by model_input",
        )


def _guide(
    positive: jax.Array, negative: jax.Array, inputs: Inputs, *, is_rescaled: bool
) -> jax.Array:
    """Traced. Classifier-free guidance in float32, its spread brought back to that of
    the conditional prediction.

    The rescaling is that of arXiv:2305.08891, section 3.4.
    """
    positive, negative = positive.astype(jnp.float32), negative.astype(jnp.float32)
    guided = negative + inputs.guidance_scale * (positive - negative)
    if not is_rescaled:
        return guided
    axes = tuple(range(1, guided.ndim))
    # ddof=1, because torch.std divides by n - 1.
    positive_spread = jnp.std(positive, axis=axes, ddof=1, keepdims=True)
    guided_spread = jnp.std(guided, axis=axes, ddof=1, keepdims=True)
    rescaled = guided * (positive_spread / guided_spread)
    return inputs.guidance_rescale * rescaled + (1 - inputs.guidance_rescale) * guided


# By model, each with the settings that its programs were traced for.
_denoisers: weakref.WeakKeyDictionary[Any, tuple[Hashable, Any]] = (
    weakref.WeakKeyDictionary()
)


def find_denoiser(model: torch.nn.Module) -> Denoiser:
    """The compiled loop of a ported model, created on first use, and again after the
    model was ported or changed.
    """
    key = settings_key(model)
    last_key, denoiser = _denoisers.get(model, (None, None))
    if key != last_key:
        denoiser = Denoiser(model)
        _denoisers[model] = key, denoiser
    return denoiser


# The user's functions as arguments of a program: the tensors that they hold are traced,
# everything else is static.


@dataclasses.dataclass(frozen=True)
class _TensorKey:
    """A tensor, by its index among all of a call's."""

    index: int


@dataclasses.dataclass(frozen=True)
class _FunctionKey:
    """A Python function by its code and the keys of what it holds; named pairs are
    (name, key).
    """

    code: types.CodeType
    cells: tuple[Hashable, ...]
    defaults: tuple[Hashable, ...]
    keyword_defaults: tuple[tuple[str, Hashable], ...]
    global_tensors: tuple[tuple[str, Hashable], ...]
    global_names: dict[str, Any] = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class _PartialKey:
    """A `functools.partial`."""

    function: Hashable
    args: tuple[Hashable, ...]
    keywords: tuple[tuple[str, Hashable], ...]


def lift_function(value: Any, tensors: list[jax.Array], depth: int = 0) -> Hashable:
    """A key of a function, equal for functions of the same code and plain values;
    `tensors` is extended by its own.

    PortError if the function holds something that is neither a tensor nor hashable.
    """
    lift = functools.partial(lift_function, tensors=tensors, depth=depth + 1)
    match value:
        case torch.Tensor() | jax.Array():
            tensors.append(as_array(value))
            return _TensorKey(len(tensors) - 1)
        # A `lambda x: torch.cat([x, condition], 1)` that is created again for every
        # call is then a single program, of which `condition` is an argument and not a
        # constant.
        case types.FunctionType() if depth < _MAX_DEPTH:
            global_names = value.__globals__
            global_tensors = {
                name: global_names[name]
                for name in value.__code__.co_names
                if isinstance(global_names.get(name), torch.Tensor | jax.Array)
            }
            return _FunctionKey(
                value.__code__,
                cells=tuple(
                    lift(cell.cell_contents) for cell in value.__closure__ or ()
                ),
                defaults=tuple(map(lift, value.__defaults__ or ())),
                keyword_defaults=_map_named(lift, (value.__kwdefaults__ or {}).items()),
                global_tensors=_map_named(lift, global_tensors.items()),
                global_names=global_names,
            )
        case functools.partial():
            keywords = _map_named(lift, value.keywords.items())
            return _PartialKey(lift(value.func), tuple(map(lift, value.args)), keywords)
    try:
        hash(value)
    except TypeError as error:
        raise PortError(
            f"a function holds a {type(value).__name__}, which is neither a tensor nor hashable",
            where=f"{value!r:.60}",
            fix="let it hold tensors and plain values",
        ) from error
    return StaticValue(value)


def as_array(tensor: Any) -> jax.Array:
    """A tensor of torch, on the host or the device, or an array, as an array."""
    if isinstance(tensor, torch.Tensor):
        return compat.to_jax(tensor)
    return tensor


def _map_named(
    function: Callable[[Any], Any], pairs: Iterable[tuple[str, Any]]
) -> tuple[tuple[str, Any], ...]:
    return tuple((name, function(value)) for name, value in pairs)


def lower_function(key: Any, tensors: list[jax.Array]) -> Any:
    """Traced. The function of a key again, which holds these arrays, as torch tensors,
    instead of its own.
    """
    lower = functools.partial(lower_function, tensors=tensors)
    match key:
        case _TensorKey():
            return compat.wrap(tensors[key.index])
        case _FunctionKey():
            global_names = key.global_names
            # The module's own dictionary unless a tensor in it is replaced, so that
            # later changes to it are seen.
            if key.global_tensors:
                global_names = global_names | dict(
                    _map_named(lower, key.global_tensors)
                )
            function = types.FunctionType(
                key.code,
                global_names,
                argdefs=tuple(map(lower, key.defaults)),
                closure=tuple(types.CellType(lower(cell)) for cell in key.cells),
            )
            function.__kwdefaults__ = dict(_map_named(lower, key.keyword_defaults))
            return function
        case _PartialKey():
            keywords = dict(_map_named(lower, key.keywords))
            return functools.partial(
                lower(key.function), *map(lower, key.args), **keywords
            )
    return key.value
