"""Someone's own model and inputs in another dtype, as `model.to(dtype)` and `inputs.to(dtype)` make them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import torch

from tpuport import compat, pytrees
from tpuport.checkpoint.device_layout import as_torch_dtype
from tpuport.topology.targets.target import Target


def cast(target: Target, dtype: torch.dtype) -> Target:
    """The target with floating parameters, buffers and inputs in this dtype, and a note of the inputs that changed.

    What is complex stays: torch would take the real part of it.
    """

    def build() -> torch.nn.Module:
        return target.build()._apply(
            lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor
        )

    if not isinstance(target.inputs, Mapping):  # of `generate`, whose inputs are tokens
        return dataclasses.replace(target, build=build, dtype=None)
    pytrees.register()
    inputs = {
        name: jax.tree.map(lambda one: _cast(one, dtype), value) for name, value in target.inputs.items()
    }
    changed = [name for name in inputs if _dtypes(inputs[name]) != _dtypes(target.inputs[name])]
    kind = str(dtype).removeprefix("torch.")
    note = (f"inputs that were converted to {kind}: {', '.join(changed)}",) if changed else ()
    return dataclasses.replace(target, build=build, inputs=inputs, dtype=None, notes=(*target.notes, *note))


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """A tensor, or the description of one, in this dtype if its numbers are floating; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if not isinstance(value, jax.ShapeDtypeStruct):
        return value
    known = as_torch_dtype(value.dtype)
    return value.update(dtype=compat.jax_dtype(dtype)) if known and known.is_floating_point else value


def _dtypes(value: Any) -> list[str]:
    return [str(getattr(leaf, "dtype", "")) for leaf in jax.tree.leaves(value)]
