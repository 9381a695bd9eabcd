"""Which modules of a model make rotary tables, and what one call of them was given."""

import dataclasses
import inspect
import re
from collections.abc import Hashable
from typing import Any

import jax
import torch

from tpuport import compat
from tpuport.static_values import exact_key

# Names that diffusers, transformers and research code give to such modules.
_NAMES = re.compile(r"Rotary|Rope|RoPE|ROPE|PosEmbed|EmbedND")


def _named(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Modules with the name of a rotary embedding and nothing learned in them, by name, the outermost of each."""
    found: dict[str, torch.nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if inside or not _NAMES.search(type(module).__name__):
            continue
        if next(module.parameters(), None) is None:
            found[name] = module
    return found


def _takes_positions(module: torch.nn.Module) -> bool:
    return "position_ids" in inspect.signature(type(module).forward).parameters


def by_shape(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Modules that may be decided by shapes alone, by name."""
    return {name: module for name, module in _named(model).items() if not _takes_positions(module)}


def by_position(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Modules that take transformers' `position_ids`, by name."""
    return {name: module for name, module in _named(model).items() if _takes_positions(module)}


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is known of a tensor whose values are not."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Arguments:
    """The arguments of one call, flat.

    Attributes:
        leaves: tensors, and anything else as it was given (a device, whatever it was, as the host's).
    """

    def __init__(self, args: tuple, kwargs: dict[str, Any]) -> None:
        leaves, self.tree = jax.tree_util.tree_flatten((args, kwargs))
        self.leaves: list[Any] = [
            torch.device("cpu") if isinstance(leaf, torch.device) else leaf for leaf in leaves
        ]

    @property
    def tensors(self) -> list[int]:
        """The places of tensors among the leaves."""
        return [place for place, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]

    def replaced(self, values: dict[int, Any]) -> "Arguments":
        """These arguments with other leaves in some places."""
        other = object.__new__(Arguments)
        other.tree = self.tree
        other.leaves = [values.get(place, leaf) for place, leaf in enumerate(self.leaves)]
        return other

    def call(self) -> tuple[tuple, dict[str, Any]]:
        """(args, kwargs)."""
        return jax.tree_util.tree_unflatten(self.tree, self.leaves)

    def signature(self) -> Hashable:
        """What two calls have in common whose tensors differ in nothing but values."""
        return self.tree, tuple(_signature(leaf) for leaf in self.leaves)

    def key(self) -> Hashable:
        """What two calls have in common that give the same: shapes where values do not matter, values elsewhere."""
        return self.tree, tuple(_key(leaf) for leaf in self.leaves)


def _signature(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor | Shape):
        # By the dtype that it has on the device: a host tensor of 64 bits is one of 32 bits there.
        return "tensor", tuple(leaf.shape), str(compat.jax_dtype(leaf.dtype))
    return exact_key(leaf)


def _key(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return _signature(leaf), leaf.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return _signature(leaf)
