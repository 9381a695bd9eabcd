"""Which weights of a module are multiplied by, and in which form: linear layers and
experts of transformers.
"""

from typing import Any

import torch

# Of the modules that transformers' interface for experts computes; see
# `patches.transformers_experts`.
_EXPERT_WEIGHTS = ("gate_up_proj", "up_proj", "down_proj")
_STACK_RANK = 3


def quantizable_weights(module: Any) -> tuple[str, ...]:
    """The names of the parameters of `module` itself that can be quantised."""
    if isinstance(module, torch.nn.Linear):
        return _present(module, ("weight",))
    if not _are_experts(module) or module.has_post_expert_norm:
        return ()
    names = _present(module, _EXPERT_WEIGHTS)
    return tuple(name for name in names if module._parameters[name].ndim == _STACK_RANK)


def is_transposed(module: Any) -> bool:
    """Whether the weights of `module` are [..., inputs, outputs], and not
    [..., outputs, inputs].
    """
    return _are_experts(module) and bool(module.is_transposed)


def _are_experts(module: Any) -> bool:
    return hasattr(module, "has_post_expert_norm")


def _present(module: torch.nn.Module, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if module._parameters.get(name) is not None)
