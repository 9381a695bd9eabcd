"""How a quantised checkpoint stores each weight, as its config says."""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax.numpy as jnp
import numpy as np
import torch

from tpuport.checkpoint.formats.compressed_tensors import shared_sizes
from tpuport.checkpoint.formats.fine_grained_fp8 import block_sizes
from tpuport.checkpoint.formats.gptq_and_awq import (
    DEFAULT_GROUP,
    ZERO_OFFSETS,
    zero_point_dtype,
)
from tpuport.checkpoint.formats.packed_tensors import group_size, integer_dtype
from tpuport.errors import PortError
from tpuport.quantization import is_transposed

_FP8: Final = jnp.dtype(jnp.float8_e4m3fn)
_FP4: Final = jnp.dtype(jnp.float4_e2m1fn)
_MXFP4_GROUP: Final = 32
_BITSANDBYTES_BLOCK: Final = 64
_NIBBLES: Final = 16
# Of the scales that GPTQ and AWQ write, whatever the model's dtype.
_HALF: Final = np.dtype(np.float16)


class StoredFormat(NamedTuple):
    """How the weights of a module are stored.

    Attributes:
        values: dtype of the values; scale: of their scales; zero_point: of zero points,
            if there are any.
        group: inputs that share a scale; None: all.
        block: outputs that share a scale; None: all.
        is_reordered: whether inputs are in groups by importance.
        levels: how many numbers the values stand for, if they are indices.
        minimum: dtype of what is subtracted from every group, if anything is.
        outer_scale: dtype of a factor that all groups share, if they do.
        fills_tiles: whether there are more scales than groups, as `count_scales` says.
    """

    name: str
    values: np.dtype
    scale: np.dtype
    zero_point: np.dtype | None = None
    group: int | None = None
    block: int | None = 1
    is_reordered: bool = False
    levels: int | None = None
    minimum: np.dtype | None = None
    outer_scale: np.dtype | None = None
    fills_tiles: bool = False


class QuantizableWeight(NamedTuple):
    """A weight that can be quantised: the name of its module, its own name there, and
    the module.
    """

    path: str
    leaf: str
    module: Any

    @property
    def checkpoint_path(self) -> str:
        """A module that a checkpoint has: one of each expert, in place of their
        stack.
        """
        if isinstance(self.module, torch.nn.Linear):
            return self.path
        projection = "down_proj" if self.leaf == "down_proj" else "up_proj"
        return f"{self.path}.0.{projection}"


# From a weight to how it is stored; None if it is as in an unquantised checkpoint.
FormatChooser = Callable[[QuantizableWeight], StoredFormat | None]


def format_chooser(
    config: Mapping[str, Any], model: Any, stored_dtype: np.dtype
) -> FormatChooser:
    """How a checkpoint with this `quantization_config` stores each weight.

    Raises:
        PortError: the config leaves open what the files have.
    """
    choosers: dict[str, Callable[..., FormatChooser]] = {
        "awq": _awq, "bitsandbytes": _bitsandbytes, "compressed-tensors": _compressed_tensors, "fp8": _fp8,
        "gptq": _gptq, "mxfp4": _mxfp4, "torchao": _torchao,
    }  # fmt: skip
    method = config["quant_method"]
    if method not in choosers:
        raise PortError(
            f"what a checkpoint of {method} has cannot be derived from its config",
            fix="compile the model with --quantize, without that entry in a copy of the config",
        )
    return choosers[method](config, model, stored_dtype)


def _unless(patterns: Sequence[str], stored: StoredFormat) -> FormatChooser:
    """One format for all weights but those that a list of transformers' names."""
    from transformers.quantizers.quantizers_utils import should_convert_module

    def choose(weight: QuantizableWeight) -> StoredFormat | None:
        if is_transposed(weight.module):
            _refuse_experts(weight, stored.name)
        return (
            stored
            if should_convert_module(weight.checkpoint_path, list(patterns))
            else None
        )

    return choose


def _refuse_experts(weight: QuantizableWeight, name: str) -> None:
    raise PortError(
        f"how a checkpoint of {name} stores transposed experts cannot be derived from its config",
        where=weight.path,
        fix="compile the model with --quantize, without that entry in a copy of the config",
    )


def _default_exceptions(model: Any) -> list[str]:
    """What transformers does not quantise by itself: output layers and tied weights."""
    from transformers.quantizers.base import get_keys_to_not_convert

    return (
        get_keys_to_not_convert(model)
        if hasattr(model, "all_tied_weights_keys")
        else []
    )


def _fp8(
    config: Mapping[str, Any], model: Any, stored_dtype: np.dtype
) -> FormatChooser:
    exceptions = config.get("modules_to_not_convert")
    if exceptions is None:
        exceptions = _default_exceptions(model)
    scale = np.dtype(np.float32)
    if config.get("weight_block_size") is None:
        return _unless(exceptions, StoredFormat("fp8", _FP8, scale, block=None))
    rows, columns = block_sizes(config["weight_block_size"])
    return _unless(
        exceptions, StoredFormat("fp8", _FP8, scale, group=columns, block=rows)
    )


def _awq(
    config: Mapping[str, Any], model: Any, stored_dtype: np.dtype
) -> FormatChooser:
    exceptions = [
        *_default_exceptions(model),
        *(config.get("modules_to_not_convert") or ()),
    ]
    values = integer_dtype(4, signed=True)
    group = group_size(
        config.get("group_size", config.get("q_group_size", DEFAULT_GROUP))
    )
    return _unless(exceptions, StoredFormat("awq int4", values, _HALF, values, group))


def _gptq(
    config: Mapping[str, Any], model: Any, stored_dtype: np.dtype
) -> FormatChooser:
    if config.get("dynamic"):
        raise PortError(
            "the checkpoint has other bits for some modules ('dynamic'), which cannot be derived from its config",
            fix="compile the model with --quantize, without that entry in a copy of the config",
        )
    bits = config["bits"]
    values = integer_dtype(bits, signed=True)
    offset = ZERO_OFFSETS.get(config.get("checkpoint_format", "gptq"), 0)
    stored = StoredFormat(
        f"gptq int{bits}", values, _HALF, zero_point_dtype(bits, offset),
        group_size(config.get("group_size", DEFAULT_GROUP)), is_reordered=bool(config.get("desc_act")),
    )  # fmt: skip
    named = config.get("modules_in_block_to_quantize")
    # Every name ends with "".
    endings = ("",)
    if named is not None:
        endings = tuple(itertools.chain.from_iterable(map(_as_list, named)))
    choose_any = _unless(
        [] if config.get("lm_head") else _default_exceptions(model), stored
    )

    def choose(weight: QuantizableWeight) -> StoredFormat | None:
        # Only what is in a block.
        path = weight.checkpoint_path
        is_in_block = re.search(r"\.\d+\.", path) or config.get("lm_head")
        return choose_any(weight) if is_in_block and path.endswith(endings) else None

    return choose


def _as_list(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _bitsandbytes(
    config: Mapping[str, Any], model: Any, stored_dtype: np.dtype
) -> FormatChooser:
    exceptions = config.get("llm_int8_skip_modules")
    if exceptions is None:
        exceptions = _default_exceptions(model)
    scale = np.dtype(np.float32)
    if config.get("load_in_8bit"):
        stored = StoredFormat("bitsandbytes int8", np.dtype(np.int8), scale)
    else:
        kind = config.get("bnb_4bit_quant_type", "fp4")
        values = integer_dtype(4, signed=False)
        stored = StoredFormat(
            f"bitsandbytes {kind}",
            values,
            scale,
            group=_BITSANDBYTES_BLOCK,
            levels=_NIBBLES,
        )
    choose_any = _unless(exceptions, stored)

    def choose(weight: QuantizableWeight) -> StoredFormat | None:
        # The library replaces linear layers alone.
        if not isinstance(weight.module, torch.nn.Linear):
            return None
        # Blocks that cross rows are made wide.
        if stored.group is not None and weight.module.in_features % stored.group:
            return None
        return choose_any(weight)

    return choose


def _mxfp4(
    config: Mapping[str, Any], model: Any, stored_dtype: np.dtype
) -> FormatChooser:
    stored = StoredFormat(
        "mxfp4",
        _FP4,
        jnp.dtype(jnp.float8_e8m0fnu),
        group=_MXFP4_GROUP,
        fills_tiles=True,
    )

    def choose(weight: QuantizableWeight) -> StoredFormat | None:
        return stored if is_transposed(weight.module) else None

    return choose


def _torchao(
    config: Mapping[str, Any], model: Any, stored_dtype: np.dtype
) -> FormatChooser:
    exceptions = config.get("modules_to_not_convert")
    if exceptions is None:
        exceptions = _default_exceptions(model)
    quant_type = config["quant_type"]["default"]
    choose_any = _unless(
        exceptions,
        _torchao_format(quant_type["_type"], quant_type["_data"], stored_dtype),
    )

    def choose(weight: QuantizableWeight) -> StoredFormat | None:
        # The library replaces linear layers alone.
        return (
            choose_any(weight) if isinstance(weight.module, torch.nn.Linear) else None
        )

    return choose


def _torchao_format(
    kind: str, data: Mapping[str, Any], stored_dtype: np.dtype
) -> StoredFormat:
    int8, scale = np.dtype(np.int8), np.dtype(np.float32)
    match kind:
        case "Int8WeightOnlyConfig" | "Int8DynamicActivationInt8WeightConfig":
            group, block = _granularity(data.get("granularity"))
            return StoredFormat(
                "torchao Int8Tensor",
                int8,
                scale,
                int8,
                data.get("group_size") or group,
                block,
            )
        case "Float8WeightOnlyConfig" | "Float8DynamicActivationFloat8WeightConfig":
            granularity = data.get("granularity")
            # Of activations, and of weights.
            group, block = _granularity(
                granularity[-1] if isinstance(granularity, list) else granularity
            )
            return StoredFormat("torchao Float8Tensor", _FP8, scale, None, group, block)
        case "IntxWeightOnlyConfig" | "Int8DynamicActivationIntxWeightConfig":
            group, block = _granularity(
                data.get("granularity") or data.get("weight_granularity")
            )
            return StoredFormat(
                "torchao IntxUnpackedToInt8Tensor",
                int8,
                stored_dtype,
                int8,
                group,
                block,
            )
        case "Int4WeightOnlyConfig":
            values = integer_dtype(4, signed=True)
            group = group_size(data["group_size"])
            return StoredFormat(
                "torchao Int4Tensor",
                values,
                stored_dtype,
                group=group,
                minimum=stored_dtype,
            )
    raise PortError(
        f"what a checkpoint of torchao's {kind} has cannot be derived from its config",
        fix="compile the model with --quantize, without that entry in a copy of the config",
    )


def _granularity(
    granularity: Mapping[str, Any] | None,
) -> tuple[int | None, int | None]:
    """Inputs and outputs that share a scale in torchao; None for all."""
    match granularity:
        case None | {"_type": "PerRow" | "PerAxis"}:
            return None, 1
        case {"_type": "PerTensor"}:
            return None, None
        case {"_type": "PerGroup", "_data": {"group_size": size}}:
            return group_size(size), 1
    raise PortError(f"the granularity {granularity!r:.80} of torchao is not supported")


def _compressed_tensors(
    config: Mapping[str, Any], model: Any, stored_dtype: np.dtype
) -> FormatChooser:
    ignored = config.get("ignore") or ()
    groups = list((config.get("config_groups") or {}).values())

    def choose(weight: QuantizableWeight) -> StoredFormat | None:
        # The class that the weight has in the checkpoint.
        names = (weight.checkpoint_path, "Linear")
        if _matches(names, ignored):
            return None
        for group in groups:
            if _matches(names, group.get("targets") or ()):
                if is_transposed(weight.module):
                    _refuse_experts(weight, "compressed-tensors")
                stored_as = group.get("format") or config.get("format") or ""
                return _compressed_format(group.get("weights"), stored_as, stored_dtype)
        return None

    return choose


def _matches(names: tuple[str, ...], targets: Sequence[str]) -> bool:
    """Whether one of the names is a target: a regex after "re:", or else a whole
    name.
    """
    for target in targets:
        pattern = target.removeprefix("re:")
        if target in names or (pattern != target and re.match(pattern, names[0])):
            return True
    return False


def _compressed_format(
    settings: Mapping[str, Any] | None, stored_as: str, stored_dtype: np.dtype
) -> StoredFormat | None:
    if not settings or stored_as == "dense":
        return None
    bits, kind = settings.get("num_bits"), settings.get("type", "int")
    outer_scale: np.dtype | None = None
    match kind, bits:
        case "float", 8:
            values = _FP8
        case "float", 4:
            values = _FP4
            stored_dtype = jnp.dtype(jnp.float8_e8m0fnu)
            if not stored_as.startswith("mxfp4"):
                stored_dtype, outer_scale = _FP8, np.dtype(np.float32)
        case "int", int() if 1 <= bits <= 8:
            # What is not packed takes a byte.
            values = integer_dtype(
                bits if stored_as == "pack-quantized" else 8, signed=True
            )
        case _:
            raise PortError(
                f"weights of compressed-tensors with num_bits={bits!r:.60} and type={kind!r:.60}"
            )
    group, block = shared_sizes(settings)
    return StoredFormat(
        f"compressed-tensors {values}", values, stored_dtype,
        None if settings.get("symmetric", True) else values, group, block,
        is_reordered=group is not None and settings.get("actorder") in ("group", "dynamic", True),
        outer_scale=outer_scale,
    )  # fmt: skip
