"""`denoise`: the denoising loop of a diffusion pipeline on the device, as one program.

Shapes: B batch of the latents, N denoising steps.
"""

import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport import checkpoint, compat, compilation
from tpuport.diffusion import mixed_devices
from tpuport.diffusion.denoising_program import Call, Carry, Denoiser, Inputs, Kind, denoiser_of
from tpuport.diffusion.function_keys import lift, lower
from tpuport.diffusion.schedulers import StepTables, initial_state, tables_for
from tpuport.diffusion.step_bar import StepBar
from tpuport.errors import PortError
from tpuport.static_values import StaticValue

__all__ = ["Denoiser", "denoise", "denoiser_of"]

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
    """Run a ported model and a diffusers scheduler from noise to latents, without the host in between.

    All steps are one program, in which start and stop are numbers given at run time: a warm-up of two steps compiles
    what a run of fifty then uses. With a progress bar or a callback the same program is called once a step, and the
    host looks at the clock and at the latents when the step is done. That costs about a millisecond a step and needs
    nothing of the platform (a callback from inside a program is not to be had on each, nor in order on several
    devices), and an interrupt takes effect after a step, not after the run.

    Args:
        model: of diffusers or your own, ported; its forward takes latents and timestep, and gives what the scheduler
            takes, in the latents' shape. Its weights are arguments of the program.
        scheduler: of diffusers. It is not changed, and must be one whose step is a linear map without drawn noise.
        latents: [B, ...] floating, on the host or the device; they keep their dtype in every step.
        conditions: further arguments of the model's forward by name, for the wanted prediction.
        negative: the same for the unwanted one, without which there is no guidance. Where both have the same shapes,
            they run as one batch of 2B rows, the negative first; else the model is called twice a step.
        num_inference_steps: number of steps; the next two in its place for levels or timesteps of one's own.
        sigmas: noise levels from high to low.
        timesteps: timesteps from high to low.
        mu: for a scheduler with dynamic shifting.
        begin_index: the first step taken, for image-to-image with a strength under 1.
        guidance_scale: `negative + guidance_scale * (positive - negative)`, in float32.
        guidance_rescale: 0 to 1, how far the spread of that is brought back to the positive prediction's.
        guidance: in place of both, traced: (positive, negative) to the prediction, torch tensors [B, ...].
        model_input: traced: scaled latents to what the model takes, such as a concatenation with condition latents.
            Tensors that it or `guidance` holds (closure, global, default, partial) are the program's arguments.
        timestep_scale: what the model is told is the scheduler's timestep times this.
        timestep_dtype: and of this dtype, float32 by default; the pipelines of HunyuanVideo give the latents' dtype.
        progress: show a bar with steps, seconds a step, their average and the time left.
        callback: called after each step with (index, timestep, latents), the latents a copy of one's own.

    Returns:
        [B, ...], the latents' dtype, on the device.

    Raises:
        PortError: before anything is compiled, for arguments that do not fit together, a scheduler that is not
            supported, or a model that is not on the device; while it is traced, for an output of another shape.
    """
    with mixed_devices.suspended():
        _check(model, latents, (conditions, negative), begin_index)
        _check_guidance(negative, guidance_scale, guidance_rescale, guidance)
        tables = tables_for(
            scheduler, num_inference_steps, sigmas=sigmas, timesteps=timesteps, begin_index=begin_index,
            mu=mu,
        )  # fmt: skip
        if tables.noises:
            raise PortError(
                f"a {type(scheduler).__name__} draws noise in its steps, with these options",
                where="scheduler",
                fix="run it in a ported pipeline, whose steps take a generator, or take a scheduler without noise",
            )
        denoiser = denoiser_of(model)
        guided = negative is not None and (guidance is not None or guidance_scale != 1)
        given = [conditions] if negative is None or not guided else [negative, conditions]
        held: list[jax.Array] = []
        lifted = None if model_input is None else lift(model_input, held)
        calls, tensors = _calls(denoiser, _taken(latents, lifted, held), tables, given)
        kind = Kind(
            calls=calls,
            model_input=lifted,
            guidance=None if guidance is None or not guided else lift(guidance, held),
            guided=guided,
            rescaled=guidance_rescale != 0,
            timestep_scale=float(timestep_scale),
            # Floating also where the scheduler counts in whole numbers: models cast embeddings to the timestep's dtype.
            timestep_dtype=str(compat.jax_dtype(timestep_dtype or torch.float32)),
        )
        numbers_ = np.float32(guidance_scale), np.float32(guidance_rescale)
        run = _Run(denoiser, tables, Inputs(tensors, held, *numbers_), kind)
        return run(latents, begin_index, progress=progress, callback=callback)


class _Run:
    """One call of `denoise`: the host's side of the loop."""

    def __init__(self, denoiser: Denoiser, tables: StepTables, inputs: Inputs, kind: Kind) -> None:
        self._denoiser, self._inputs, self._kind = denoiser, inputs, kind
        self._arrays: dict[str, Any] = {}
        self._timesteps, self._tables = tables.timesteps, tables.padded()

    def _steps(self, carry: Carry, start: int, stop: int) -> tuple[Carry, jax.Array]:
        return self._denoiser.program(
            self._arrays, carry, self._tables, np.int32(start), np.int32(stop), self._inputs, self._kind
        )

    def __call__(self, latents: torch.Tensor, start: int, *, progress: bool, callback: Any) -> torch.Tensor:
        # A copy, because the program takes its memory for what it gives back.
        array = jnp.array(compat.to_jax(latents), copy=True)
        array = self._denoiser.put(array)
        self._arrays = self._denoiser.arrays(array, self._tables, self._inputs, self._kind)
        carry, stop = Carry(array, initial_state(self._tables, array)), len(self._timesteps)
        self._denoiser.check(self._arrays, carry, self._tables, self._inputs, self._kind)
        if not progress and callback is None:
            carry, _ = self._steps(carry, start, stop)
            return compat.wrap(carry.latents)
        with StepBar(total=stop - start, disable=not progress, desc="denoising") as bar:
            for index in range(start, stop):
                carry, done = self._steps(carry, index, index + 1)
                bar.watch(done)
                bar.update()
                if callback is not None:
                    copy = jnp.array(carry.latents, copy=True)
                    callback(index, compat.wrap(self._timesteps[index]), compat.wrap(copy))
        return compat.wrap(carry.latents)


def _taken(latents: torch.Tensor, model_input: Any, held: list[jax.Array]) -> torch.Tensor:
    """What stands for the model's input, of its shape and dtype, while its other arguments are looked at."""
    shape, dtype = tuple(latents.shape), latents.dtype
    if model_input is not None:
        example = jax.ShapeDtypeStruct(shape, compat.jax_dtype(dtype))
        with compat.environment():
            made = jax.eval_shape(
                lambda x, held: compat.as_jax(lower(model_input, held)(compat.wrap(x))), example, held
            )
        shape, dtype = made.shape, compat.torch_dtype(made.dtype)
    return torch.zeros((), dtype=dtype).expand(shape)


def _calls(
    denoiser: Denoiser, latents: torch.Tensor, tables: StepTables, given: list[Conditions]
) -> tuple[tuple[Call, ...], list[list[jax.Array]]]:
    """The model's calls in a step, with their tensors: one for each of `given`, or one for both."""
    model, batch = denoiser.model, latents.shape[0]
    fixed = {denoiser.sample: latents}
    if denoiser.time is not None:
        fixed[denoiser.time] = torch.full((batch,), float(tables.timesteps[0]))
    # What a patch keeps depends on what a model has met: after the first look it has met the conditions of both.
    for conditions in given[1:]:
        compilation.prepare_arguments(model, (), {**fixed, **conditions})
    looked_at = [compilation.prepare_arguments(model, (), {**fixed, **conditions})[1] for conditions in given]
    prepared = [{name: x for name, x in kwargs.items() if name not in fixed} for kwargs in looked_at]
    flat = [jax.tree_util.tree_flatten(conditions) for conditions in prepared]
    if len(flat) == 2 and (both := _merged(flat[0], flat[1], batch)) is not None:
        flat, times = [both], 2
    else:
        times = 1
    calls, tensors = [], []
    for leaves, tree in flat:
        rows = [_has_rows(leaf, times * batch) for leaf in leaves]
        kinds = tuple(
            ("rows" if row else "whole") if isinstance(leaf, torch.Tensor | jax.Array) else _static(leaf)
            for leaf, row in zip(leaves, rows, strict=True)
        )
        calls.append(Call(tree, times, kinds))
        tensors.append(
            [
                denoiser.put(_array(leaf), rows=row)
                for leaf, row in zip(leaves, rows, strict=True)
                if isinstance(leaf, torch.Tensor | jax.Array)
            ]
        )
    return tuple(calls), tensors


def _merged(first: tuple[list, Any], second: tuple[list, Any], batch: int) -> tuple[list, Any] | None:
    """Conditions of a batch of both; None where their shapes or plain values differ."""
    if first[1] != second[1]:
        return None
    merged: list[Any] = []
    for one, other in zip(first[0], second[0], strict=True):
        if not isinstance(one, torch.Tensor | jax.Array):
            if _static(one) != _static(other):
                return None
            merged.append(one)
            continue
        one, other = _array(one), _array(other)
        if one.shape != other.shape or one.dtype != other.dtype:
            return None
        if _has_rows(one, batch):
            merged.append(jnp.concatenate([one, other]))
        elif bool(jnp.array_equal(one, other)):
            merged.append(one)
        else:
            return None
    return merged, first[1]


def _array(tensor: Any) -> jax.Array:
    return compat.to_jax(tensor) if isinstance(tensor, torch.Tensor) else tensor


def _has_rows(leaf: Any, batch: int) -> bool:
    return isinstance(leaf, torch.Tensor | jax.Array) and leaf.ndim > 0 and leaf.shape[0] == batch


def _static(value: Any) -> StaticValue:
    try:
        return StaticValue(value)
    except TypeError as error:
        raise PortError(
            f"a condition is a {type(value).__name__}, neither a tensor nor hashable",
            where=f"{value!r:.60}",
            fix="pass tensors and plain values",
        ) from error


def _check(model: Any, latents: torch.Tensor, given: tuple[Conditions | None, ...], begin_index: int) -> None:
    if not isinstance(model, torch.nn.Module) or checkpoint.model_mesh(model) is None:
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
    for where, conditions in zip(("conditions", "negative"), given, strict=True):
        if conditions is not None:
            _check_names(model, conditions, where)
            _check_masks(conditions, where)


def _check_names(model: torch.nn.Module, conditions: Conditions, where: str) -> None:
    """PortError for arguments that the model's forward does not take, and for those that are missing."""
    denoiser = denoiser_of(model)
    known = denoiser.parameters
    ours = {denoiser.sample, denoiser.time, "return_dict"}
    if twice := sorted(ours & conditions.keys()):
        raise PortError(
            f"{', '.join(twice)} comes from the loop", where=where, fix="leave it out of the conditions"
        )
    kinds = {parameter.kind for parameter in known.values()}
    name = type(model).__name__
    unknown = sorted(conditions.keys() - known.keys())
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise PortError(
            f"{name}.forward does not take {', '.join(unknown)}",
            where=where,
            fix=f"it takes {', '.join(known)}",
        )
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = {key for key, p in known.items() if p.default is p.empty and p.kind in named}
    if missing := sorted(needed - conditions.keys() - ours):
        raise PortError(
            f"{name}.forward needs {', '.join(missing)}", where=where, fix="add it to the conditions"
        )


def _check_masks(conditions: Conditions, where: str) -> None:
    """PortError for a mask whose rows or columns are not those of its embeddings."""
    for name, embeddings in conditions.items():
        mask = conditions.get(name.replace("hidden_states", "attention_mask"))
        if (
            not (isinstance(embeddings, torch.Tensor) and isinstance(mask, torch.Tensor))
            or mask is embeddings
        ):
            continue
        if mask.ndim == 2 and embeddings.ndim == 3 and mask.shape != embeddings.shape[:2]:
            raise PortError(
                f"{name} are {list(embeddings.shape[:2])} tokens, and their mask is {list(mask.shape)}",
                where=where,
                fix="give the mask that the tokenizer made for these embeddings",
            )


def _check_guidance(negative: Any, scale: Any, rescale: Any, guidance: Any) -> None:
    for value, name in ((scale, "guidance_scale"), (rescale, "guidance_rescale")):
        if not isinstance(value, numbers.Real) or not np.isfinite(float(value)):
            raise PortError(f"{value!r} is no finite number", where=name, fix="give a number")
    if negative is None and (scale != 1 or guidance is not None or rescale != 0):
        raise PortError(
            "guidance needs a prediction to lead away from",
            where="negative",
            fix="give the negative conditions too; a guidance scale that the model itself takes is a condition",
        )
    if guidance is not None and (scale != 1 or rescale != 0):
        raise PortError(
            "a guidance of one's own takes the place of guidance_scale and guidance_rescale",
            where="guidance",
            fix="give one or the other",
        )
