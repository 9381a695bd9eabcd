"""What to read of a checkpoint for each array of the model, its dtype and its sharding,
planned before any device is touched.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding

from tpuport import compat
from tpuport.checkpoint.device_layout import (
    dtype_overrides,
    find_owner,
    parameter_groups,
    plan_shardings,
    put_buffer,
    put_parameter,
    replicated_sharding,
)
from tpuport.checkpoint.lazy_tensors import LazyTensor
from tpuport.checkpoint.name_matching import Match
from tpuport.checkpoint.quantized_layout import empty_weight
from tpuport.checkpoint.quantized_tensors import QuantizedTensor, quantizing
from tpuport.errors import PortError
from tpuport.libraries.library_classes import is_diffusers_class
from tpuport.quantization import (
    QuantizationRules,
    install,
    is_transposed,
    part_name,
    quantizable_weights,
)
from tpuport.sharding import ShardingRules
from tpuport.sharding.quantized_parts import are_factors_cut, plan_parts


@dataclass(frozen=True)
class ArrayPlan:
    """An array to create: its names in the model, what to read, its dtype and sharding,
    and how it gets its names.
    """

    names: tuple[str, ...]
    source: LazyTensor
    dtype: np.dtype
    sharding: NamedSharding
    put: Callable[[torch.nn.Module, Iterable[str], torch.Tensor], None]


def array_dtypes(
    model: Any, model_dtype: torch.dtype, requested_dtype: torch.dtype | None
) -> Callable[[str, LazyTensor], np.dtype]:
    """A function from a tensor of the checkpoint and its name in the model to the dtype
    of the array it becomes.
    """
    override = dtype_overrides(model, model_dtype)
    expected = model.state_dict()
    # Looked up once, and not for each of thousands of tensors.
    is_diffusers = is_diffusers_class(type(model))

    def array_dtype(name: str, source: LazyTensor) -> np.dtype:
        dtype = expected[name].dtype
        if dtype.is_floating_point:
            # transformers builds modules in their final dtype; diffusers takes the
            # requested or the stored one.
            if is_diffusers:
                dtype = requested_dtype or compat.torch_dtype(source.dtype)
            dtype = override(name, dtype)
        return compat.jax_dtype(dtype)

    return array_dtype


def plan_arrays(
    model: Any,
    match: Match,
    array_dtype: Callable[[str, LazyTensor], np.dtype],
    mesh: Mesh,
    rules: ShardingRules | None,
    allow: Iterable[str],
) -> list[ArrayPlan]:
    """What to read and where to put it, in the order of the model; the sharding is
    audited on the way.
    """
    groups = parameter_groups(model)
    stored_groups: list[tuple[list[str], LazyTensor]] = []
    shapes: dict[str, jax.ShapeDtypeStruct] = {}
    for names in groups:
        parameter = model.get_parameter(names[0])
        dtype = compat.jax_dtype(parameter.dtype)
        source = next(filter(None, map(match.sources.get, names)), None)
        if source is not None:
            stored_groups.append((names, source))
            dtype = array_dtype(names[0], source)
        # The same object for all names of a group: that is how the audit recognises
        # tied weights.
        shapes.update(
            dict.fromkeys(names, jax.ShapeDtypeStruct(tuple(parameter.shape), dtype))
        )
    shardings = plan_shardings(model, groups, shapes, mesh, rules, allow)
    quantized = {
        names[0]: source.multiply_out()
        if are_factors_cut(source, shardings[names[0]])
        else source
        for names, source in stored_groups
        if isinstance(source, QuantizedTensor) and _can_stay_quantized(model, names)
    }
    part_plans = plan_parts(quantized, shardings)
    plans: list[ArrayPlan] = []
    for names, source in stored_groups:
        name = names[0]
        if name in quantized:
            plans += _install_quantized(
                model, name, quantized[name], shapes[name].dtype, part_plans[name]
            )
        else:
            plans.append(
                ArrayPlan(
                    tuple(names),
                    source,
                    shapes[name].dtype,
                    shardings[name],
                    put_parameter,
                )
            )
    # What the state dict has besides parameters, and parts that are planned already,
    # are buffers.
    buffers = [name for name in model.state_dict() if name not in shapes]
    for name in filter(match.sources.__contains__, buffers):
        source = match.sources[name]
        dtype = array_dtype(name, source)
        plans.append(
            ArrayPlan((name,), source, dtype, replicated_sharding(mesh), put_buffer)
        )
    return plans


def quantize_sources(
    model: Any,
    match: Match,
    array_dtype: Callable[[str, LazyTensor], np.dtype],
    quantization: QuantizationRules | None,
) -> None:
    """Replace the sources of the weights that `quantization` names by such as are
    quantised while they are read.
    """
    if quantization is None:
        return
    stored = sorted(
        name
        for name, source in match.sources.items()
        if isinstance(source, QuantizedTensor)
    )
    if stored:
        raise PortError(
            "the checkpoint is quantised already",
            where=stored[0],
            fix="load it without quantize=",
        )
    for name, scheme in quantization.schemes(model).items():
        # Of tied weights only the first is stored.
        if name in match.sources:
            source = match.sources[name]
            transposed = is_transposed(find_owner(model, name)[0])
            match.sources[name] = quantizing(
                source, scheme, array_dtype(name, source), transposed=transposed
            )


def _can_stay_quantized(model: Any, names: list[str]) -> bool:
    """Whether the module that has this weight multiplies by it, and nothing else shares
    it.
    """
    module, leaf = find_owner(model, names[0])
    return len(names) == 1 and leaf in quantizable_weights(module)


def _install_quantized(
    model: Any,
    name: str,
    source: QuantizedTensor,
    dtype: np.dtype,
    shardings: Mapping[str, NamedSharding],
) -> list[ArrayPlan]:
    """Let the model, which is empty, read a weight from parts, and plan these parts."""
    module, leaf = find_owner(model, name)
    install(module, leaf, empty_weight(source, compat.torch_dtype(dtype)))
    return [
        ArrayPlan(
            (part_name(name, part),), tensor, tensor.dtype, shardings[part], put_buffer
        )
        for part, tensor in source.parts.items()
    ]
