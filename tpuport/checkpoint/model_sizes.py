"""What a model says about its size: quantised weights are counted, which are no
parameters of torch.
"""

import functools
from math import prod
from typing import Any

import torch

from tpuport.quantization import quantized_weights

# Of the models of transformers and diffusers.
_COUNT, _FOOTPRINT = "num_parameters", "get_memory_footprint"


class ModelSize:
    """One of these methods, for a model with quantised weights.

    Attributes:
        model: the model; name: of the method.
    """

    def __init__(self, model: Any, name: str) -> None:
        self.model = model
        self.name = name
        functools.update_wrapper(self, getattr(type(model), name))

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        counted = getattr(type(self.model), self.name)(self.model, *args, **kwargs)
        weights = [weight for *_, weight in quantized_weights(self.model)]
        if self.name == _FOOTPRINT:
            # Parts are buffers, and four bits count as a byte there.
            are_counted = kwargs.get("return_buffers", args[0] if args else True)
            parts = [part for weight in weights for part in weight.parts.values()]
            as_buffers = sum(part.nbytes for part in parts)
            stored = sum(sum(weight.part_bytes.values()) for weight in weights)
            return counted - (as_buffers if are_counted else 0) + stored
        is_trainable_only = kwargs.get("only_trainable", args[0] if args else False)
        return (
            counted
            if is_trainable_only
            else counted + sum(prod(weight.shape) for weight in weights)
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModelSize":
        return ModelSize(memo.get(id(self.model), self.model), self.name)


def replace_sizes(model: torch.nn.Module) -> None:
    """Let a model count its quantised weights, if it has any."""
    if not any(quantized_weights(model)):
        return
    for name in (_COUNT, _FOOTPRINT):
        if callable(getattr(type(model), name, None)):
            vars(model)[name] = ModelSize(model, name)


def restore_sizes(model: torch.nn.Module) -> None:
    """Give a model its own methods back."""
    for name in (_COUNT, _FOOTPRINT):
        if isinstance(vars(model).get(name), ModelSize):
            del vars(model)[name]
