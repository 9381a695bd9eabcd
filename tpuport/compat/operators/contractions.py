"""Sums of products by labelled dimensions."""

import string
from typing import Any

import jax.numpy as jnp
import torch

from tpuport.compat.declarations import Lowering, on_arrays


def einsum(equation: str, *operands: Any) -> torch.Tensor:
    """`torch.einsum`: a view of one tensor if nothing is summed. torch has made an
    equation of lists of dimensions.
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        [operands] = operands
    if len(operands) == 1:
        inputs, output = _name_every_dimension(equation, operands[0].ndim)
        if set(inputs) == set(output):
            return _order(operands[0], inputs, output)
    return on_arrays(jnp.einsum)(equation, *operands)


def _name_every_dimension(equation: str, rank: int) -> tuple[str, str]:
    """The labels of the only operand and of the result, with letters that are not used
    for "..."; "" if not stated.
    """
    inputs, _, output = equation.replace(" ", "").partition("->")
    unused = [letter for letter in string.ascii_letters if letter not in equation]
    others = "".join(unused[: max(rank - len(inputs.replace("...", "")), 0)])
    return inputs.replace("...", others), output.replace("...", others)


def _order(tensor: torch.Tensor, inputs: str, output: str) -> torch.Tensor:
    """The view of a tensor with its dimensions in another order, and the diagonal of
    those that share a label.
    """
    labels = list(inputs)
    for label in set(inputs):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            sizes = tensor.shape[first], tensor.shape[second]
            if sizes[0] != sizes[1]:
                raise RuntimeError(
                    f"einsum(): subscript {label} is repeated, but the sizes {sizes} don't match"
                )
            tensor = tensor.diagonal(0, first, second)
            del labels[second], labels[first]
            labels.append(label)
    return tensor.permute(list(map(labels.index, output)))


LOWERINGS = (
    Lowering(
        torch.einsum,
        einsum,
        "gives a copy where torch orders dimensions, and takes at most two tensors in a list",
    ),
)
METHODS = ()
