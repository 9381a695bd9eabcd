"""The compiled denoising loop of a ported model: model, guidance and scheduler in one program.

Shapes: B batch of the latents, N denoising steps.
"""

import inspect
import weakref
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuport import checkpoint, compat, pytrees, rotary, trace_errors
from tpuport.compilation import Program, check_constants, collect_weights, settings_key, use_weights
from tpuport.diffusion.function_keys import lower
from tpuport.diffusion.scheduler_tables import StepTables, step
from tpuport.errors import PortError
from tpuport.static_values import StaticValue

_SAMPLES = ("hidden_states", "sample", "x")
_TIMES = ("timestep", "timesteps", "t")


class Carry(NamedTuple):
    """What a step hands to the next: latents in their dtype, the scheduler's history in float32."""

    latents: jax.Array
    state: tuple[jax.Array, ...]


class Call(NamedTuple):
    """One call of the model in a step: the tree of its conditions, how many times it takes the latents, and of each
    leaf of the tree the plain value, or the word for a tensor that has the batch's rows or not.
    """

    tree: Any
    times: int
    leaves: tuple[str | StaticValue, ...]


class Kind(NamedTuple):
    """What a program is made for beside shapes."""

    calls: tuple[Call, ...]
    model_input: Hashable
    guidance: Hashable
    guided: bool
    rescaled: bool
    timestep_scale: float
    timestep_dtype: str


class Inputs(NamedTuple):
    """Arrays of a program: tensors of each call's conditions, those that the user's functions hold, numbers."""

    tensors: list[list[jax.Array]]
    held: list[jax.Array]
    guidance_scale: np.float32
    guidance_rescale: np.float32


class Denoiser:
    """The compiled loop of one ported model.

    Steps `start` to `stop` are traced numbers and the tables are padded, so that a warm-up of two steps, a run of
    fifty, and the same run step by step for a progress bar are one compilation.

    Attributes:
        program: `Program`; its `compilations` count.
    """

    def __init__(self, model: Any) -> None:
        pytrees.register()
        # Weakly, because the model is what keeps its programs alive.
        self._model = weakref.ref(model)
        self.mesh: Mesh | None = checkpoint.model_mesh(model)
        parameters = inspect.signature(model.forward).parameters
        self.parameters = parameters
        self.sample = next((name for name in _SAMPLES if name in parameters), next(iter(parameters)))
        self.time = next((name for name in _TIMES if name in parameters), None)
        self._rotary = rotary.ProgramTables()
        self._checked: set[Hashable] = set()
        name = type(model).__name__
        self.program = Program(self._traced, f"{name} denoising", static_argnums=(6,), donate_argnums=(1,))

    @property
    def model(self) -> Any:
        """The ported model."""
        return self._model()

    def arrays(self, latents: jax.Array, tables: StepTables, inputs: Inputs, kind: Kind) -> dict[str, Any]:
        """The model's weights, and its rotary tables for these inputs, by name."""

        def predict(weights: list[dict[str, Any]], latents: jax.Array, inputs: Inputs) -> jax.Array:
            return self._predict(weights[0], latents, tables, jnp.int32(0), inputs, kind)

        shapes = tuple((x.shape, str(x.dtype)) for x in jax.tree.leaves((latents, inputs)))
        [found] = self._rotary.add_to(
            [collect_weights(self.model)], (kind, shapes), [self.model], predict, latents, inputs
        )
        return found

    def check(
        self, arrays: dict[str, Any], carry: Carry, tables: StepTables, inputs: Inputs, kind: Kind
    ) -> None:
        """Trace a new program, and look at its constants.

        Raises:
            PortError: the model cannot be traced, or a weight of a model would be a constant.
        """
        key = kind, tuple((x.shape, str(x.dtype)) for x in jax.tree.leaves((carry, tables, inputs)))
        if key not in self._checked:
            one = np.int32(1)
            with trace_errors.explained(self.model):
                constants = self.program.constants(arrays, carry, tables, one, one, inputs, kind)
            check_constants(self.program.name, constants)
            self._checked.add(key)

    def _traced(
        self,
        arrays: dict[str, jax.Array],
        carry: Carry,
        tables: StepTables,
        start: jax.Array,
        stop: jax.Array,
        inputs: Inputs,
        kind: Kind,
    ) -> tuple[Carry, jax.Array]:
        """Traced. Steps `start` to `stop`, and a number that is there when they are done."""

        def one(index: jax.Array, carry: Carry) -> Carry:
            output = self._predict(arrays, carry.latents, tables, index, inputs, kind)
            following, state = step(tables, index, output, carry.latents, carry.state)
            return Carry(self.rows(following), tuple(self.rows(x) for x in state))

        return jax.lax.fori_loop(start, stop, one, carry), stop + 0

    def _predict(
        self,
        arrays: dict[str, jax.Array],
        latents: jax.Array,
        tables: StepTables,
        index: jax.Array,
        inputs: Inputs,
        kind: Kind,
    ) -> jax.Array:
        """Traced. What the scheduler takes for the model's output, [B, ...], guidance done in float32."""
        hidden = (latents * tables.scales[index]).astype(latents.dtype)
        timestep = tables.timesteps[index]
        if kind.timestep_scale != 1:
            timestep = timestep * kind.timestep_scale
        timestep = timestep.astype(kind.timestep_dtype)
        with use_weights([self.model], [arrays]):
            if kind.model_input is not None:
                hidden = compat.as_jax(lower(kind.model_input, inputs.held)(compat.wrap(hidden)))
            outputs = [
                self._call(hidden, timestep, tensors, call)
                for tensors, call in zip(inputs.tensors, kind.calls, strict=True)
            ]
            if not kind.guided:
                return _fitting(outputs[0], latents.shape)
            if len(outputs) == 1:
                outputs = jnp.split(_fitting(outputs[0], (2 * len(latents), *latents.shape[1:])), 2)
            negative, positive = (_fitting(x, latents.shape) for x in outputs)
            if kind.guidance is not None:
                guidance = lower(kind.guidance, inputs.held)
                return _fitting(
                    compat.as_jax(guidance(compat.wrap(positive), compat.wrap(negative))), latents.shape
                )
        return _guided(positive, negative, inputs, rescaled=kind.rescaled)

    def _call(
        self, hidden: jax.Array, timestep: jax.Array, tensors: list[jax.Array], call: Call
    ) -> jax.Array:
        """Traced. One call of the model; the batch of the conditions may be twice that of the latents."""
        left = iter(tensors)
        read = {"rows": lambda: compat.wrap(self.rows(next(left))), "whole": lambda: compat.wrap(next(left))}
        given = [read[leaf]() if isinstance(leaf, str) else leaf.value for leaf in call.leaves]
        conditions = jax.tree_util.tree_unflatten(call.tree, given)
        hidden = self.rows(jnp.concatenate([hidden] * call.times))
        if self.time is not None:
            conditions[self.time] = compat.wrap(jnp.broadcast_to(timestep, (hidden.shape[0],)))
        if "return_dict" in self.parameters:
            conditions["return_dict"] = False
        out = self.model(**{self.sample: compat.wrap(hidden)}, **conditions)
        out = out[0] if isinstance(out, tuple | list) else getattr(out, "sample", out)
        return compat.as_jax(out)

    def sharding(self, shape: tuple[int, ...]) -> NamedSharding | None:
        """The batch over dp where it divides, everything else whole on each device."""
        if self.mesh is None:
            return None
        split = shape and "dp" in self.mesh.shape and shape[0] % self.mesh.shape["dp"] == 0
        return NamedSharding(self.mesh, PartitionSpec("dp") if split else PartitionSpec())

    def rows(self, array: jax.Array) -> jax.Array:
        """Traced. An array placed by `sharding`."""
        sharding = self.sharding(array.shape)
        if sharding is None or sharding.mesh.size == 1:
            return array
        return jax.lax.with_sharding_constraint(array, sharding)

    def put(self, array: jax.Array, *, rows: bool = True) -> jax.Array:
        """An array on the devices of the mesh: its rows over dp, or whole on each."""
        return jax.device_put(array, self.sharding(array.shape if rows else ()))


def _fitting(output: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    if output.shape != shape:
        raise PortError(
            f"the model gives {output.shape}, and the scheduler needs {shape}",
            where="the model's output",
            fix="give latents of the model's output shape, and what else it takes in by model_input",
        )
    return output


def _guided(positive: jax.Array, negative: jax.Array, inputs: Inputs, *, rescaled: bool) -> jax.Array:
    """Traced. Classifier-free guidance in float32, its spread brought back to that of the conditional prediction."""
    positive, negative = positive.astype(jnp.float32), negative.astype(jnp.float32)
    guided = negative + inputs.guidance_scale * (positive - negative)
    if not rescaled:
        return guided
    axes = tuple(range(1, guided.ndim))
    spread = [jnp.std(x, axis=axes, ddof=1, keepdims=True) for x in (positive, guided)]
    return (
        inputs.guidance_rescale * (guided * (spread[0] / spread[1])) + (1 - inputs.guidance_rescale) * guided
    )


_denoisers: weakref.WeakKeyDictionary[Any, tuple[Hashable, Denoiser]] = weakref.WeakKeyDictionary()


def denoiser_of(model: torch.nn.Module) -> Denoiser:
    """The compiled loop of a ported model, made on first use, and anew when the model was ported again or changed."""
    key = settings_key(model)
    if model not in _denoisers or _denoisers[model][0] != key:
        _denoisers[model] = key, Denoiser(model)
    return _denoisers[model][1]
