"""`model.save_pretrained` of a ported model: as transformers does it, and the model is
the same afterwards.

Weights need no more than their own methods for it: safetensors asks which of them share
memory, and copies each to the host when the file that it belongs to is written.
"""

import functools
from typing import Any

import torch

from tpuport.errors import PortError
from tpuport.quantization import quantized_weights


class ModelSave:
    """`model.save_pretrained` of a ported transformers model.

    transformers notes the weights' dtype in the configuration, as a text. The
    configuration is part of the key of programs, which would be compiled again.

    Attributes:
        model: the model.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        # diffusers' pipelines look for the names of arguments.
        functools.update_wrapper(self, type(model).save_pretrained)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(quantized_weights(self.model)):
            raise PortError(
                "a model with quantised weights cannot be saved: no library reads them in this form",
                where="save_pretrained",
                fix="tpuport.to_cpu(model) gives it ordinary weights with the same numbers, which can be saved",
            )
        config = self.model.config
        if not hasattr(config, "dtype"):
            return type(self.model).save_pretrained(self.model, *args, **kwargs)
        dtype = config.dtype
        try:
            return type(self.model).save_pretrained(self.model, *args, **kwargs)
        finally:
            config.dtype = dtype

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModelSave":
        return ModelSave(memo.get(id(self.model), self.model))


def replace_save(model: Any) -> None:
    """Let saving a ported model leave its configuration alone, and refuse quantised
    weights.

    Does nothing for models that have no configuration.
    """
    is_savable = callable(getattr(type(model), "save_pretrained", None))
    if is_savable and hasattr(model, "config"):
        model.save_pretrained = ModelSave(model)


def restore_save(model: torch.nn.Module) -> None:
    """Give a model its own `save_pretrained` back."""
    if isinstance(vars(model).get("save_pretrained"), ModelSave):
        del model.save_pretrained
