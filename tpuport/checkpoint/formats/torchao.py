"""torchao's weights as transformers saves them in safetensors: int8, int4 in groups,
FP8, and integers in bytes.

A weight is `(qdata - zero_point) * scale`, with a scale for each block of outputs and
inputs; one of `Int4Tensor`, whose zero points are added to the product, is
`qdata * scale + zero_point`. The kind of each weight is in the header of its file.
Activations are computed in the model's dtype: scales of theirs are left out.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tpuport.checkpoint.formats.packed_tensors import (
    count_groups,
    integer_dtype,
    reshape,
    unpack,
)
from tpuport.checkpoint.formats.weight_tensors import (
    Adapted,
    BadWeightError,
    Tensors,
    WeightTensors,
    adapt_each,
    collect,
)
from tpuport.checkpoint.lazy_tensors import Index, LazyTensor, Reader, transpose
from tpuport.checkpoint.quantized_tensors import QuantizedTensor, group_columns
from tpuport.checkpoint.safetensors_files import read_metadata

_QDATA: Final = "_weight_qdata"
_SCALE: Final = "_weight_scale"
_ZERO_POINT: Final = "_weight_zero_point"
# A factor on activations, which no product has.
_PRE_SCALE: Final = "_weight_act_pre_scale"
_ENDINGS: Final = (
    _QDATA, _SCALE, _ZERO_POINT, _PRE_SCALE, "_weight_act_quant_scale", "_weight_act_quant_zero_point"
)  # fmt: skip
_BYTES: Final = {
    "Int8Tensor": "i",
    "IntxUnpackedToInt8Tensor": "i",
    "Float8Tensor": "f",
}
_PACKED: Final = "Int4Tensor"


@dataclass(frozen=True, eq=False)
class _Negated(LazyTensor):
    """What is added to a product, as what is subtracted from it."""

    base: LazyTensor

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        out[...] = -self.base.read(reader, index, self.base.dtype)


def adapt(config: Mapping[str, Any], tensors: Tensors, dtype: np.dtype) -> Adapted:
    """The weights of a checkpoint whose `quant_method` is "torchao"."""
    weights, others = collect(tensors, _ENDINGS, _QDATA)
    # Once for each file, which has many weights.
    metadata_of = functools.cache(read_metadata)

    def adapt_weight(weight: WeightTensors) -> LazyTensor:
        return _adapt_weight(
            weight, _header(weight, metadata_of(weight.get(_QDATA).path)), dtype
        )

    return adapt_each(weights, others, adapt_weight)


def _adapt_weight(
    weight: WeightTensors, header: Mapping[str, Any], dtype: np.dtype
) -> LazyTensor:
    if _PRE_SCALE in weight:
        raise BadWeightError(f"{_PRE_SCALE}, a factor on activations, is not supported")
    for name in header.get("_tensor_data_names", ()):
        weight.get(f"_weight_{name}")
    kind, block = header["_type"], _block_size(header)
    if kind == _PACKED:
        return _adapt_packed(weight, block, dtype)
    values = weight.get(_QDATA, (None, None), _BYTES[kind])
    if values.dtype.itemsize != 1:
        raise BadWeightError(f"{_QDATA} is {values.dtype}, and not of eight bits")
    outputs, inputs = values.shape
    scale = _blocks(weight, _SCALE, values.shape)
    if (
        block is not None
        and (scale.shape[0] * block[0], scale.shape[1] * block[1]) != values.shape
    ):
        raise BadWeightError(
            f"{_SCALE} is {list(scale.shape)}, for blocks of {list(block)} of {list(values.shape)}"
        )
    zero_point = None
    if _ZERO_POINT in weight:
        zero_point = _blocks(weight, _ZERO_POINT, values.shape)
        if zero_point.shape != scale.shape:
            raise BadWeightError(f"{_ZERO_POINT} has other blocks than {_SCALE}")
    return QuantizedTensor(
        values.shape,
        dtype,
        group_columns(values, inputs // scale.shape[1]),
        transpose(scale, 0, 1),
        None if zero_point is None else transpose(zero_point, 0, 1),
        output_block=outputs // scale.shape[0],
        scheme=f"torchao {kind}",
    )


def _adapt_packed(
    weight: WeightTensors, block: tuple[int, int] | None, dtype: np.dtype
) -> LazyTensor:
    """Two inputs in each byte, the first in its lower bits; scales and zero points are
    [groups, outputs].
    """
    packed = weight.get(_QDATA, (None, None), "iu")
    if packed.dtype.itemsize != 1:
        raise BadWeightError(f"{_QDATA} is {packed.dtype}, and not of eight bits")
    outputs, inputs = packed.shape[0], 2 * packed.shape[1]
    groups = None if block is None else count_groups(block[1], inputs)
    scale = weight.get(_SCALE, (groups, outputs), "f")
    groups = scale.shape[0]
    if not groups or inputs % groups:
        raise BadWeightError(
            f"{_SCALE} has {groups} groups, which do not divide {inputs} inputs"
        )
    added = weight.get(_ZERO_POINT, (groups, outputs), "f")
    return QuantizedTensor(
        (outputs, inputs),
        dtype,
        group_columns(
            unpack(packed, 1, 4, integer_dtype(4, signed=True), is_signed=True),
            inputs // groups,
        ),
        scale,
        minimum=_Negated(added.shape, added.dtype, added),
        scheme=f"torchao {_PACKED}",
    )


def _blocks(weight: WeightTensors, ending: str, shape: tuple[int, ...]) -> LazyTensor:
    """Scales or zero points as [blocks of outputs, blocks of inputs] of a weight
    [O, K].
    """
    tensor = weight.get(ending, kinds="fi")
    sizes = tensor.shape
    match sizes:
        case ():
            sizes = (1, 1)
        case (rows,):
            sizes = (rows, 1)
    fits = len(sizes) == 2 and all(
        count and size % count == 0 for size, count in zip(shape, sizes, strict=True)
    )
    if not fits:
        raise BadWeightError(
            f"{ending} has shape {list(tensor.shape)}, which does not divide {list(shape)}"
        )
    return tensor if sizes == tensor.shape else reshape(tensor, *sizes)


def _block_size(header: Mapping[str, Any]) -> tuple[int, int] | None:
    """Outputs and inputs that share a scale; None if the header does not say."""
    match header.get("_data"):
        case {"block_size": [int(rows), int(columns)]} if rows > 0 and columns > 0:
            return rows, columns
        case {"block_size": block} if block is not None:
            raise BadWeightError(
                f"its block_size is {block!r:.60}, and not two positive integers"
            )
    return None


def _header(weight: WeightTensors, metadata: Mapping[str, str]) -> Mapping[str, Any]:
    """What the header of its file says about a weight: its class, the names of its
    tensors, the size of its blocks.
    """
    name = f"{weight.module}.weight"
    try:
        header = json.loads(metadata[name])
        kind = header["_type"]
    except (KeyError, TypeError, ValueError) as error:
        raise BadWeightError(
            f"the header of its file does not say what {name} is"
        ) from error
    if kind not in (*_BYTES, _PACKED):
        raise BadWeightError(
            f"{kind} of torchao is not supported; supported are {', '.join(sorted((*_BYTES, _PACKED)))}, or an "
            "unquantised checkpoint with quantize='int8'"
        )
    return header
