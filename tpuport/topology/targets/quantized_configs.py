"""The weights of a quantised checkpoint by its config alone: their parts have shapes
and dtypes, and no files.

What `tpuport.load` would keep in few bits, in the form in which it would. Letters as in
`checkpoint.quantized_tensors`: a weight [..., O, K] is values [..., G, I, O] with
scales [..., G, B].
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from tpuport import compat
from tpuport.checkpoint import formats
from tpuport.checkpoint.building import QUANTIZATION
from tpuport.checkpoint.device_layout import as_torch_dtype, find_owner
from tpuport.checkpoint.formats.mxfp4 import count_scales
from tpuport.checkpoint.formats.weight_tensors import BadWeightError
from tpuport.checkpoint.lazy_tensors import LazyTensor
from tpuport.checkpoint.quantized_layout import empty_weight
from tpuport.checkpoint.quantized_tensors import QuantizedTensor
from tpuport.errors import PortError
from tpuport.quantization import install, is_transposed, quantizable_weights
from tpuport.topology.targets.config_files import ConfigFile
from tpuport.topology.targets.gguf_configs import is_gguf, quantize_as_gguf
from tpuport.topology.targets.stored_formats import (
    QuantizableWeight,
    StoredFormat,
    format_chooser,
)


def quantization_note(config_file: ConfigFile) -> tuple[str, ...]:
    """What is to be said about a config's weights, if they are in few bits.

    Raises:
        PortError: they are in a format that `tpuport.load` does not read.
    """
    if is_gguf(config_file):
        return ("weights are in the types of their GGUF file",)
    quantization = config_file.raw.get(QUANTIZATION)
    if not quantization:
        return ()
    formats.check_method(quantization, f"{config_file.path}, {QUANTIZATION}")
    return (
        f"weights are in few bits, as the config says: {quantization['quant_method']}",
    )


def quantize_as_file(
    model: torch.nn.Module, config_file: ConfigFile, dtype: torch.dtype
) -> None:
    """As `quantize_as_config`, if the config says that the checkpoint is quantised, or
    it is a GGUF file.
    """
    if is_gguf(config_file):
        quantize_as_gguf(model, config_file, dtype)
        return
    raw = config_file.raw
    if not raw.get(QUANTIZATION):
        return
    where = f"{config_file.path}, {QUANTIZATION}"
    stored_dtype = as_torch_dtype(raw.get("dtype", raw.get("torch_dtype"))) or dtype
    try:
        quantize_as_config(model, raw[QUANTIZATION], dtype, stored_dtype)
    except PortError as error:
        raise PortError(error.what, where=where, fix=error.fix) from error
    except BadWeightError as error:
        raise PortError(str(error), where=where) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PortError(
            f"it does not describe a quantised checkpoint: {error!r:.200}",
            where=where,
            fix="take that entry out of a copy of the config, to compile the model unquantised",
        ) from error


def quantize_as_config(
    model: torch.nn.Module,
    config: Mapping[str, Any],
    dtype: torch.dtype,
    stored_dtype: torch.dtype,
) -> None:
    """Give a model without values the quantised weights that `tpuport.load` would give
    it.

    Args:
        config: the `quantization_config`, whose method is one that can be read.
        dtype: of the weights; stored_dtype: of scales in the files, where the format
            leaves it open.

    Raises:
        PortError: the config leaves open what the files have.
    """
    choose = format_chooser(config, model, compat.jax_dtype(stored_dtype))
    for weight in list(_candidates(model)):
        stored = choose(weight)
        if stored is None:
            continue
        source = _describe(weight, stored, compat.jax_dtype(dtype))
        if source is not None:
            install(weight.module, weight.leaf, empty_weight(source, dtype))


def _candidates(model: torch.nn.Module) -> Iterator[QuantizableWeight]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    counts = Counter(map(id, parameters.values()))
    for name, parameter in parameters.items():
        module, leaf = find_owner(model, name)
        # What is shared is read wide.
        if leaf in quantizable_weights(module) and counts[id(parameter)] == 1:
            yield QuantizableWeight(name.removesuffix(f".{leaf}"), leaf, module)


def _describe(
    weight: QuantizableWeight, stored: StoredFormat, dtype: np.dtype
) -> QuantizedTensor | None:
    """The weight as it would be read; None where it would be made wide."""
    shape = tuple(weight.module._parameters[weight.leaf].shape)
    transposed = is_transposed(weight.module)
    *leading, outputs, inputs = shape
    if transposed:
        outputs, inputs = inputs, outputs
    group = min(stored.group or inputs, inputs)
    groups = -(-inputs // group)
    is_reordered = stored.is_reordered and groups > 1
    # A stack has these one behind the other, each with blocks of its own.
    pieces = 2 if weight.leaf == "gate_up_proj" and not transposed else 1
    rows = outputs // pieces
    block = stored.block or rows
    if leading:
        block = min(block, rows)
    blocks = pieces * -(-rows // block)
    if leading and (is_reordered or (pieces > 1 and rows % block)):
        return None
    scales = (*leading, count_scales(groups) if stored.fills_tiles else groups, blocks)
    return QuantizedTensor(
        shape,
        dtype,
        LazyTensor((*leading, groups, group, outputs), stored.values),
        LazyTensor(scales, stored.scale),
        _part(scales, stored.zero_point),
        LazyTensor((inputs,), np.dtype(np.int32)) if is_reordered else None,
        _part((*leading, 1, blocks), stored.outer_scale),
        _part(scales, stored.minimum),
        # Only their number matters to a program.
        levels=None
        if stored.levels is None
        else tuple(map(float, range(stored.levels))),
        output_block=block,
        scheme=stored.name,
        transposed=transposed,
    )


def _part(shape: tuple[int, ...], dtype: np.dtype | None) -> LazyTensor | None:
    return None if dtype is None else LazyTensor(shape, dtype)
