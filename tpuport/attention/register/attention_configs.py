"""Which configs of a transformers model choose its attention."""

from collections.abc import Iterator
from typing import Any

import torch

from tpuport.internals import transformers_internals


def attention_configs(model: torch.nn.Module) -> list[Any]:
    """The distinct configs of all modules that choose an implementation of attention.

    A config that a model which cannot choose reads too, outside of those that can, is
    not among them. Nor is one in which transformers chose none: it makes no masks for
    that, and so its own attention sees padding.
    """
    choosing = list(_choosing_models(model))
    inside = {id(module) for root in choosing for module in root.modules()}
    fixed = {
        id(module.config)
        for module in model.modules()
        if id(module) not in inside and hasattr(module, "config")
    }
    configs = {
        id(module.config): module.config
        for root in choosing
        for module in root.modules()
        if hasattr(module, "config") and id(module.config) not in fixed
    }
    return [
        config
        for config in configs.values()
        if transformers_internals.chosen_attention(config) is not None
    ]


def _choosing_models(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The outermost models whose attention can be chosen."""
    if transformers_internals.can_choose_attention(module):
        yield module
        return
    for child in module.children():
        yield from _choosing_models(child)
