"""The model in a GGUF file: its config, and its weights with shapes and dtypes but
without values.
"""

import dataclasses
from pathlib import Path
from typing import Any, Final

import torch

from tpuport import compat
from tpuport.base.mappings import without
from tpuport.checkpoint import building, gguf_files
from tpuport.checkpoint.device_layout import find_owner, parameter_groups
from tpuport.checkpoint.quantized_layout import empty_weight
from tpuport.checkpoint.quantized_tensors import QuantizedTensor
from tpuport.quantization import install, quantizable_weights
from tpuport.topology.targets.config_files import ConfigFile

_SUFFIX: Final = ".gguf"


def is_gguf(config_file: ConfigFile) -> bool:
    """Whether the model is in a GGUF file."""
    return config_file.path.endswith(_SUFFIX)


def read_config(config_file: ConfigFile) -> ConfigFile:
    """The same with the values that transformers reads from the file; PortError if it
    cannot, or lacks gguf.
    """
    from transformers import AutoModelForCausalLM

    name = Path(config_file.path).name
    # First, because its errors are about the file.
    gguf_files.read_file(config_file.directory, name)
    config = building.read_gguf_config(
        AutoModelForCausalLM, config_file.directory, name, {}
    )
    # The file leaves the dtype to whoever loads it.
    raw = without(config.to_dict(), {"dtype"})
    return dataclasses.replace(config_file, raw=raw)


def quantize_as_gguf(
    model: torch.nn.Module, config_file: ConfigFile, dtype: torch.dtype
) -> None:
    """Give a model without values the quantised weights that `tpuport.load` would give
    it.

    Args:
        dtype: of the weights.
    """
    file = gguf_files.read_file(config_file.directory, Path(config_file.path).name)
    sources: dict[str, Any] = gguf_files.adapt(file, model, compat.jax_dtype(dtype))
    for names in parameter_groups(model):
        module, leaf = find_owner(model, names[0])
        source = sources.get(names[0])
        # What is shared is read wide.
        is_kept = len(names) == 1 and leaf in quantizable_weights(module)
        if is_kept and isinstance(source, QuantizedTensor):
            install(module, leaf, empty_weight(source, dtype))
