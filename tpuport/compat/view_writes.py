"""Whether writes through views arrive, and what is refused if they do not."""

from collections.abc import Iterator
from typing import Any

import jax
import torch

from tpuport.compat.convert import is_ported, wrap
from tpuport.compat.runtime import environment
from tpuport.internals.mechanism import Mechanism
from tpuport.internals.torch_internals import torch_pytree


def _writes_reach_viewed_tensor() -> bool:
    """Whether a write to a view changes the viewed tensor, and a write to that the
    view.
    """
    changes = []

    def write(array: jax.Array) -> jax.Array:
        tensor: Any = wrap(array)
        view = tensor[0]
        before = view.jax()
        view.add_(1)
        changes.append(tensor.jax() is not array and view.jax() is not before)
        before = view.jax()
        tensor.mul_(2)
        changes.append(view.jax() is not before)
        return tensor.jax()

    with environment():
        jax.eval_shape(write, jax.ShapeDtypeStruct((2, 2), "float32"))
    return all(changes)


WRITES_THROUGH_VIEWS = Mechanism(
    "writes through views",
    "torch",
    rests_on="OpOverload._schema, which says what an operator writes to, and torchax's Tensor._elem",
    without="a write to a tensor that shares memory with another on the device is an error, as it would not reach it",
    probe=_writes_reach_viewed_tensor,
    fix="write to a clone, and compute the other tensor from it",
)


def written_by_name(
    operator: Any, args: tuple, kwargs: dict[str, Any]
) -> Iterator[torch.Tensor]:
    """The tensors on the device that an operator writes to, by its name alone."""
    name = getattr(operator, "__name__", "").partition(".")[0]
    written = [value for key, value in kwargs.items() if key.startswith("out")]
    if name.endswith("_") and not name.endswith("__"):
        written += args[:1]
    yield from filter(is_ported, torch_pytree.tree_leaves(written))
