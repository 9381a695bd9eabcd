"""`denoise`: the denoising loop of a diffusion pipeline on the device, as a single
program.

Shapes: B batch of the latents, N denoising steps.
"""

import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport import checkpoint, compat, compilation
from tpuport.base.mappings import without
from tpuport.diffusion.denoising_program import (
    Carry,
    Denoiser,
    Inputs,
    LoopSettings,
    ModelCall,
    as_array,
    find_denoiser,
    lift_function,
    lower_function,
)
from tpuport.diffusion.mixed_devices import suspend
from tpuport.diffusion.schedulers import StepTables, build_tables, initial_state
from tpuport.diffusion.step_bar import StepBar
from tpuport.errors import PortError
from tpuport.objects.static_values import StaticValue

__all__ = ["Denoiser", "denoise", "find_denoiser"]

Conditions = Mapping[str, Any]


def denoise(
    model: Any,
    scheduler: Any,
    latents: torch.Tensor,
    *,
    conditions: Conditions,
    negative: Conditions | None = None,
    num_inference_steps: int | None = None,
    sigmas: Any = None,
    timesteps: Any = None,
    mu: float | None = None,
    begin_index: int = 0,
    guidance_scale: float = 1.0,
    guidance_rescale: float = 0.0,
    guidance: Callable | None = None,
    model_input: Callable | None = None,
    timestep_scale: float = 1.0,
    timestep_dtype: torch.dtype | None = None,
    progress: bool = True,
    callback: Callable[[int, torch.Tensor, torch.Tensor], Any] | None = None,
) -> torch.Tensor:
    """Run a ported model and a diffusers scheduler from noise to latents, without the
    host in between.

    All steps are a single program, in which start and stop are numbers passed at run
    time: a warm-up of two steps compiles what a run of fifty then uses. With a progress
    bar or a callback the same program is called once for each step, which costs about a
    millisecond a step; an interrupt then takes effect after a step, not after the run.

    Args:
        model: of diffusers or your own, ported; its forward takes latents and timestep,
            and returns what the scheduler takes, in the latents' shape. Its weights are
            arguments of the program.
        scheduler: of diffusers. It is not changed, and its step must be a linear map
            without drawn noise.
        latents: [B, ...] floating, on the host or the device; they keep their dtype in
            every step.
        conditions: further arguments of the model's forward by name, for the positive
            prediction.
        negative: the same for the negative prediction, without which there is no
            guidance. If both have the same shapes, they run as a batch of 2B rows, the
            negative first; otherwise the model is called twice a step.
        num_inference_steps: number of steps; give one of the next two instead for
            custom levels or timesteps.
        sigmas: noise levels from high to low.
        timesteps: timesteps from high to low.
        mu: for a scheduler with dynamic shifting.
        begin_index: the first step taken, for image-to-image with a strength under 1.
        guidance_scale: `negative + guidance_scale * (positive - negative)`, in float32.
        guidance_rescale: 0 to 1, how far the spread of that is brought back to the
            positive prediction's.
        guidance: instead of both, traced: (positive, negative) to the prediction, torch
            tensors [B, ...].
        model_input: traced: scaled latents to the model's input, such as a
            concatenation with condition latents. Tensors that it or `guidance` holds
            (closure, global, default, partial) are the program's arguments.
        timestep_scale: the model receives the scheduler's timestep times this.
        timestep_dtype: the dtype in which it does, float32 by default; the pipelines of
            HunyuanVideo pass the latents' dtype.
        progress: show a bar with steps, seconds per step, their average and the time
            left.
        callback: called after each step with (index, timestep, latents); the latents
            are a copy that it may keep.

    Returns:
        [B, ...], the latents' dtype, on the device.

    Raises:
        PortError: before anything is compiled, for arguments that do not fit together,
            a scheduler that is not supported, or a model that is not on the device;
            while it is traced, for an output of another shape.
    """
    with suspend():
        _check_model_and_latents(model, latents)
        branches: list[Any] = [conditions]
        _check_conditions(model, conditions, "conditions")
        if negative is not None:
            _check_conditions(model, negative, "negative")
        _check_guidance(negative, guidance_scale, guidance_rescale, guidance)
        # With a scale of 1 the guided prediction is the positive one, and half of the
        # work is saved.
        is_guided = guidance is not None or guidance_scale != 1
        if is_guided:
            branches = [negative, conditions]
        tables = build_tables(
            scheduler, num_inference_steps, sigmas=sigmas, timesteps=timesteps, begin_index=begin_index,
            mu=mu,
        )  # fmt: skip
        _check_noiseless(scheduler, tables)
        denoiser = find_denoiser(model)
        function_tensors: list[jax.Array] = []
        input_key = lift_function(
            model_input or (lambda latents: latents), function_tensors
        )
        example = _example_input(latents, input_key, function_tensors)
        calls, tensors = _plan_calls(denoiser, example, tables, branches)
        settings = LoopSettings(
            calls=calls,
            model_input=input_key,
            guidance=lift_function(guidance, function_tensors),
            is_guided=is_guided,
            is_rescaled=guidance_rescale != 0,
            timestep_scale=float(timestep_scale),
            # Floating even if the scheduler counts in whole numbers: models cast
            # embeddings to the timestep's dtype.
            timestep_dtype=str(compat.jax_dtype(timestep_dtype or torch.float32)),
        )
        inputs = Inputs(
            tensors,
            function_tensors,
            np.float32(guidance_scale),
            np.float32(guidance_rescale),
        )
        run = _Run(denoiser, tables, inputs, settings)
        return run(latents, begin_index, progress=progress, callback=callback)


class _Run:
    """A call of `denoise`: the host's side of the loop."""

    def __init__(
        self,
        denoiser: Denoiser,
        tables: StepTables,
        inputs: Inputs,
        settings: LoopSettings,
    ) -> None:
        self._denoiser, self._inputs, self._settings = denoiser, inputs, settings
        self._timesteps, self._tables = tables.timesteps, tables.padded()
        self._arrays: dict[str, Any] = {}

    def __call__(
        self, latents: torch.Tensor, start: int, *, progress: bool, callback: Any
    ) -> torch.Tensor:
        # A copy, because the program reuses its memory for the result.
        array = self._denoiser.put(jnp.array(compat.to_jax(latents), copy=True))
        tables, inputs, settings = self._tables, self._inputs, self._settings
        self._arrays = self._denoiser.collect_arrays(array, tables, inputs, settings)
        carry = Carry(array, initial_state(tables, array))
        stop = len(self._timesteps)
        # Before the first call, which donates the carry: an error leaves everything as
        # it was.
        self._denoiser.check(self._arrays, carry, tables, inputs, settings)
        if not progress and callback is None:
            carry, _ = self._run_steps(carry, start, stop)
            return compat.wrap(carry.latents)
        # The host looks between two calls: callbacks from inside a program are not
        # supported on every platform, nor ordered on several devices.
        with StepBar(total=stop - start, disable=not progress, desc="denoising") as bar:
            for index in range(start, stop):
                carry, done = self._run_steps(carry, index, index + 1)
                bar.watch(done)
                bar.update()
                if callback is not None:
                    # A copy, because the next step reuses the memory of the latents.
                    copy = jnp.array(carry.latents, copy=True)
                    callback(
                        index, compat.wrap(self._timesteps[index]), compat.wrap(copy)
                    )
        return compat.wrap(carry.latents)

    def _run_steps(
        self, carry: Carry, start: int, stop: int
    ) -> tuple[Carry, jax.Array]:
        bounds = np.int32(start), np.int32(stop)
        return self._denoiser.program(
            self._arrays,
            carry,
            self._tables,
            *bounds,
            self._inputs,
            settings=self._settings,
        )


def _example_input(
    latents: torch.Tensor, input_key: Any, function_tensors: list[jax.Array]
) -> torch.Tensor:
    """Zeros, without memory, of the shape and dtype of the model's input."""

    def compute_input(array: jax.Array, tensors: list[jax.Array]) -> jax.Array:
        return compat.as_jax(lower_function(input_key, tensors)(compat.wrap(array)))

    # Only its shape is computed: the user's function may concatenate condition latents.
    description = jax.ShapeDtypeStruct(
        tuple(latents.shape), compat.jax_dtype(latents.dtype)
    )
    with compat.environment():
        model_input = jax.eval_shape(compute_input, description, function_tensors)
    return torch.zeros((), dtype=compat.torch_dtype(model_input.dtype)).expand(
        model_input.shape
    )


class _FlatConditions(NamedTuple):
    """The conditions of a call, flattened: arrays for tensors, hashable values for
    everything else.
    """

    leaves: list[jax.Array | StaticValue]
    tree: Any

    @classmethod
    def flatten(cls, arguments: Conditions) -> "_FlatConditions":
        leaves, tree = jax.tree_util.tree_flatten(arguments)
        return cls(list(map(_normalize_leaf, leaves)), tree)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What conditions have in common that can be a single call."""
        return self.tree, *map(_leaf_kind, self.leaves)


def _plan_calls(
    denoiser: Denoiser,
    example: torch.Tensor,
    tables: StepTables,
    branches: list[Conditions],
) -> tuple[tuple[ModelCall, ...], list[list[jax.Array]]]:
    """The model's calls in a step, with their tensors: one for each of `branches`, or a
    single call for both.
    """
    model, batch = denoiser.model, example.shape[0]
    # Stand-ins for what the loop computes: patches may look at their shapes.
    fixed = {denoiser.sample_name: example}
    if denoiser.time_name is not None:
        fixed[denoiser.time_name] = torch.full((batch,), float(tables.timesteps[0]))
    # What a patch computes depends on the conditions that a model has met: after this,
    # it has met those of all branches, and the second pass below agrees for all of
    # them.
    for conditions in branches[1:]:
        compilation.prepare_arguments(model, (), {**fixed, **conditions})
    flat_branches = []
    for conditions in branches:
        _, arguments = compilation.prepare_arguments(model, (), {**fixed, **conditions})
        arguments = without(arguments, fixed)
        flat_branches.append(_FlatConditions.flatten(arguments))
    merged = _merge(flat_branches, batch)
    repeats = len(branches) // len(merged)
    plans = [
        _plan_call(denoiser, conditions, repeats, repeats * batch)
        for conditions in merged
    ]
    calls, tensors = zip(*plans, strict=True)
    return calls, list(tensors)


def _plan_call(
    denoiser: Denoiser, conditions: _FlatConditions, repeats: int, rows: int
) -> tuple[ModelCall, list[jax.Array]]:
    """A call of the model for a batch of `rows`, and its tensors on the devices."""
    kinds: list[str | StaticValue] = []
    tensors = []
    for leaf in conditions.leaves:
        if isinstance(leaf, StaticValue):
            kinds.append(leaf)
            continue
        has_rows = _has_rows(leaf, rows)
        kinds.append("rows" if has_rows else "whole")
        tensors.append(denoiser.put(leaf, has_rows=has_rows))
    return ModelCall(conditions.tree, repeats, tuple(kinds)), tensors


def _merge(branches: list[_FlatConditions], batch: int) -> list[_FlatConditions]:
    """The conditions of one batch for all branches; the branches themselves if shapes
    or plain values differ.
    """
    first_branch = branches[0]
    # A plain value that differs is another program, and shapes that differ cannot be
    # concatenated.
    if len({branch.kind for branch in branches}) > 1:
        return branches
    leaves: list[jax.Array | StaticValue] = []
    for parts in zip(*(branch.leaves for branch in branches), strict=True):
        first, last = parts[0], parts[-1]
        if isinstance(first, StaticValue):
            leaves.append(first)
        elif _has_rows(first, batch):
            leaves.append(jnp.concatenate(parts))
        # Without rows it belongs to the whole batch, so both branches must have the
        # same.
        elif jnp.array_equal(first, last):
            leaves.append(first)
        else:
            return branches
    return [_FlatConditions(leaves, first_branch.tree)]


def _has_rows(tensor: jax.Array, batch: int) -> bool:
    """Whether a tensor has a row for each row of the batch."""
    return tensor.shape[:1] == (batch,)


def _normalize_leaf(value: Any) -> jax.Array | StaticValue:
    if isinstance(value, torch.Tensor | jax.Array):
        return as_array(value)
    return StaticValue(value)


def _leaf_kind(leaf: jax.Array | StaticValue) -> Any:
    """A plain value itself; of a tensor what does not depend on its contents."""
    if isinstance(leaf, StaticValue):
        return leaf
    return leaf.shape, str(leaf.dtype)


def _check_model_and_latents(model: Any, latents: torch.Tensor) -> None:
    if checkpoint.model_mesh(model) is None:
        raise PortError(
            f"this {type(model).__name__} is not on the device",
            where="the first argument of denoise",
            fix="model = tpuport.port(model, mesh=mesh); of a pipeline, give pipe.transformer or pipe.unet",
        )
    if not latents.is_floating_point() or latents.ndim == 0:
        raise PortError(
            f"latents are {latents.dtype} {list(latents.shape)}",
            where="latents",
            fix="give floating numbers [batch, ...]",
        )


def _check_noiseless(scheduler: Any, tables: StepTables) -> None:
    if tables.noises:
        raise PortError(
            f"a {type(scheduler).__name__} draws noise in its steps, with these options",
            where="scheduler",
            fix="run it in a ported pipeline, whose steps take a generator, or take a scheduler without noise",
        )


def _check_conditions(
    model: torch.nn.Module, conditions: Conditions, where: str
) -> None:
    """PortError for arguments that the model's forward does not take, or lacks, and for
    masks that do not fit.
    """
    denoiser = find_denoiser(model)
    parameters = denoiser.parameters
    loop_arguments = {denoiser.sample_name, denoiser.time_name, "return_dict"}
    repeated = sorted(loop_arguments & conditions.keys())
    if repeated:
        raise PortError(
            f"{', '.join(repeated)} comes from the loop",
            where=where,
            fix="leave it out of the conditions",
        )
    name = type(model).__name__
    kinds = {parameter.kind for parameter in parameters.values()}
    unknown = sorted(conditions.keys() - parameters.keys())
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise PortError(
            f"{name}.forward does not take {', '.join(unknown)}",
            where=where,
            fix=f"it takes {', '.join(parameters)}",
        )
    # Not *args and **kwargs, which have no default either.
    named_kinds = (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    required = {
        key
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind in named_kinds
    }
    missing = sorted(required - conditions.keys() - loop_arguments)
    if missing:
        raise PortError(
            f"{name}.forward needs {', '.join(missing)}",
            where=where,
            fix="add it to the conditions",
        )
    _check_masks(conditions, where)


def _check_masks(conditions: Conditions, where: str) -> None:
    """PortError for a mask whose rows or columns are not those of its embeddings."""
    for name, embeddings in conditions.items():
        mask = conditions.get(name.replace("hidden_states", "attention_mask"))
        # Nothing but a tensor has a shape; what is not named hidden states is its own
        # mask, of equal rank.
        tokens, mask_shape = (
            tuple(getattr(embeddings, "shape", ())),
            tuple(getattr(mask, "shape", ())),
        )
        if (len(tokens), len(mask_shape)) == (3, 2) and tokens[:2] != mask_shape:
            raise PortError(
                f"{name} are {list(tokens[:2])} tokens, and their mask is {list(mask_shape)}",
                where=where,
                fix="give the mask that the tokenizer made for these embeddings",
            )


def _check_guidance(negative: Any, scale: Any, rescale: Any, guidance: Any) -> None:
    for value, name in ((scale, "guidance_scale"), (rescale, "guidance_rescale")):
        if not isinstance(value, numbers.Real) or not np.isfinite(float(value)):
            raise PortError(
                f"{value!r} is not a finite number", where=name, fix="give a number"
            )
    # The two ways to guide, which exclude each other.
    ways = guidance is not None, (scale, rescale) != (1, 0)
    if negative is None and any(ways):
        raise PortError(
            "guidance needs a prediction to lead away from",
            where="negative",
            fix="give the negative conditions too; a guidance scale that the model itself takes is a condition",
        )
    if all(ways):
        raise PortError(
            "a custom guidance replaces guidance_scale and guidance_rescale",
            where="guidance",
            fix="give one or the other",
        )
