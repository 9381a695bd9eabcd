"""Quantised checkpoints, a module for each format: their tensors as weights that can be
read like any others.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tpuport.checkpoint.formats import (
    bitsandbytes,
    compressed_tensors,
    fine_grained_fp8,
    gptq_and_awq,
    mxfp4,
    torchao,
)
from tpuport.checkpoint.formats.weight_tensors import Adapted, BadWeightError, Tensors
from tpuport.errors import PortError

Adapter = Callable[[Mapping[str, Any], Tensors, np.dtype], Adapted]

# By the `quant_method` of a config.
_ADAPTERS: dict[str, Adapter] = {
    "awq": gptq_and_awq.adapt_awq,
    "bitsandbytes": bitsandbytes.adapt,
    "compressed-tensors": compressed_tensors.adapt,
    "fp8": fine_grained_fp8.adapt,
    "gptq": gptq_and_awq.adapt_gptq,
    "mxfp4": mxfp4.adapt,
    "torchao": torchao.adapt,
}
_FIX = "check that config.json is the one that was published with these files"


def check_method(config: Any, where: str) -> None:
    """PortError, about `where`, unless `config` is a `quantization_config` of a format
    that can be read.
    """
    method = (
        config.get("quant_method", config.get("quant_type"))
        if isinstance(config, Mapping)
        else None
    )
    if not isinstance(config, Mapping) or not isinstance(method, str | None):
        raise PortError(
            f"it is {config!r:.60}, and not an object that names a method", where=where
        )
    if method not in _ADAPTERS:
        raise PortError(
            f"the checkpoint is quantised ({method or 'unknown method'}), which is not supported",
            where=where,
            fix=f"supported are {', '.join(sorted(_ADAPTERS))}; or load an unquantised checkpoint, "
            "with quantize='int8' for example",
        )


def adapt(
    config: Mapping[str, Any], tensors: Tensors, dtype: np.dtype, where: str
) -> Adapted:
    """The tensors of a quantised checkpoint by the names that an unquantised one has.

    Args:
        config: the `quantization_config`, which `check_method` has passed.
        dtype: of the weights.

    Raises:
        PortError: the tensors do not fit the config or each other.
    """
    try:
        return _ADAPTERS[config["quant_method"]](config, tensors, dtype)
    except PortError as error:
        raise PortError(error.what, where=where, fix=error.fix) from error
    except BadWeightError as error:
        raise PortError(str(error), where=where, fix=_FIX) from error
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        ZeroDivisionError,
    ) as error:
        raise PortError(
            f"it does not describe a quantised checkpoint: {error!r:.200}",
            where=where,
            fix=_FIX,
        ) from error
