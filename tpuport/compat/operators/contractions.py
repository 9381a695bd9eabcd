"""Sums of products by labelled dimensions."""

import string
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import torch

from tpuport.compat.operators.declarations import Lowering, on_arrays


def einsum(equation: Any, *operands: Any) -> torch.Tensor:
    """`torch.einsum` of an equation, or of lists of dimensions; a view if it only orders a tensor's dimensions."""
    if not isinstance(equation, str):
        equation, operands = _as_equation((equation, *operands))
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        [operands] = operands
    inputs, _, output = equation.replace(" ", "").partition("->")
    is_order = len(set(inputs)) == len(inputs) and sorted(inputs) == sorted(output)
    if is_order and len(operands) == 1:
        return operands[0].permute([inputs.index(label) for label in output])
    return on_arrays(jnp.einsum)(equation, *operands)


def _as_equation(arguments: tuple) -> tuple[str, tuple]:
    """The equation and the tensors of `einsum(tensor, dimensions, ..., dimensions of the result)`."""

    def spell(dimensions: Sequence[Any]) -> str:
        return "".join("..." if label is Ellipsis else string.ascii_letters[label] for label in dimensions)

    operands, dimensions = arguments[: len(arguments) // 2 * 2 : 2], arguments[1::2]
    equation = ",".join(map(spell, dimensions))
    if len(arguments) % 2:
        equation += f"->{spell(arguments[-1])}"
    return equation, operands


LOWERINGS = (
    Lowering(torch.einsum, einsum, "gives a copy where torch orders dimensions, and takes no lists of them"),
)
METHODS = ()
