"""The forms that torch has of a sampler: constructors, tensors like another one, and
operators that fill a tensor.

A sampler is a function (draw, parameters of the distribution) -> array. The parameters
are numbers or arrays, in torch's order and by torch's names.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.base.mappings import without
from tpuport.compat.argument_checks import require
from tpuport.compat.convert import as_jax, jax_dtype
from tpuport.compat.outputs import store, write
from tpuport.compat.randomness import distributions
from tpuport.compat.randomness.streams import next_key

Operator = Callable[..., torch.Tensor]
Sampler = Callable[..., jax.Array]
# What torch's messages call types.
_NAMES = {
    "bool": "Bool",
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "complex64": "ComplexFloat",
}
_REAL = (jnp.floating, jnp.integer, jnp.bool_)
# What can be drawn; by all others, real floating numbers.
_KINDS: dict[Any, tuple[Any, ...]] = {
    distributions.unit: (jnp.inexact,),
    distributions.gaussian: (jnp.inexact,),
    distributions.integers: _REAL,
    distributions.coins: _REAL,
    distributions.geometrics: _REAL,
}
# Options about memory, which jax manages.
_PLACEMENT = frozenset({"device", "layout", "pin_memory", "memory_format"})


class Draw(NamedTuple):
    """What is asked for.

    Attributes:
        generator: None for torch's default one.
        array: of the tensor that the result is like, if there is one.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    generator: torch.Generator | None
    array: Any = None

    def key(self, generator: torch.Generator | None = None) -> jax.Array:
        """The next key of the generator, which a few operators take among their
        parameters.
        """
        return next_key(generator or self.generator)

    def numbers(
        self, kernel: str, distribution: Sampler, *parameters: Any
    ) -> jax.Array:
        """Numbers of this shape and dtype, by a function of `distributions`.

        Args:
            kernel: what torch's error for a dtype names.
        """
        require_kind(self.dtype, kernel, *_KINDS.get(distribution, (jnp.floating,)))
        return distribution(self.key(), self.shape, self.dtype, *parameters)


def require_kind(dtype: np.dtype, kernel: str, *kinds: Any) -> None:
    """Raise torch's error where numbers of a dtype cannot be drawn."""
    if not any(jnp.issubdtype(dtype, kind) for kind in kinds):
        raise NotImplementedError(
            f'"{kernel}" not implemented for {type_name(dtype)!r}'
        )


def type_name(dtype: np.dtype) -> str:
    """What torch's messages call a dtype."""
    name = np.dtype(dtype).name
    return _NAMES.get(name, name)


def constructor(
    sampler: Sampler, default: torch.dtype | None = None, *, is_plain: bool = False
) -> Operator:
    """`torch.rand(*size)`, or `torch.randint(*parameters, size)`.

    Args:
        default: the dtype where none is asked for; None for torch's default.
        is_plain: whether there are no parameters, but sizes alone.
    """

    def construct(
        *args: Any,
        size: Any = None,
        generator: Any = None,
        dtype: torch.dtype | None = None,
        out: Any = None,
        **options: Any,
    ) -> torch.Tensor:
        if size is None and args and isinstance(args[-1], Sequence):
            args, size = args[:-1], args[-1]
        elif size is None and is_plain:
            args, size = (), args
        dtype = dtype or (default if out is None else out.dtype)
        draw = Draw(
            _shape(size or ()),
            jax_dtype(dtype or torch.get_default_dtype()),
            generator,
        )
        return _result(sampler, draw, args, options, out)

    return construct


def _shape(size: Sequence[int]) -> tuple[int, ...]:
    shape = tuple(map(int, size))
    negative = next((number for number in shape if number < 0), 0)
    require(
        not negative,
        f"Trying to create tensor with negative dimension {negative}: {list(shape)}",
    )
    return shape


def like(sampler: Sampler) -> Operator:
    """`torch.rand_like(tensor)`, or `torch.bernoulli(tensor, *parameters)`."""

    def draw(
        tensor: Any,
        *args: Any,
        generator: Any = None,
        dtype: torch.dtype | None = None,
        out: Any = None,
        **options: Any,
    ) -> torch.Tensor:
        array = tensor.jax()
        kind = array.dtype if dtype is None else jax_dtype(dtype)
        draw = Draw(array.shape, kind, generator, array)
        return _result(sampler, draw, args, options, out)

    return draw


def filling(sampler: Sampler) -> Operator:
    """`tensor.normal_(*parameters)`, of a tensor or a view."""

    def fill(
        tensor: Any, *args: Any, generator: Any = None, **named: Any
    ) -> torch.Tensor:
        array = tensor.jax()
        draw = Draw(array.shape, array.dtype, generator, array)
        return write(tensor, sampler(draw, *as_jax(args), **as_jax(named)))

    return fill


def _result(
    sampler: Sampler, draw: Draw, args: Any, options: dict[str, Any], out: Any
) -> torch.Tensor:
    """A new tensor, or `out`, as the caller wants it."""
    named = without(options, _PLACEMENT | {"requires_grad"})
    tensor = store(out, sampler(draw, *as_jax(args), **as_jax(named)))
    return tensor.requires_grad_() if options.get("requires_grad") else tensor
