"""Histograms of elements, with bins of equal width."""

from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.argument_checks import require_values
from tpuport.compat.declarations import Lowering, on_arrays


def histc(x: jax.Array, bins: int = 100, min: float = 0, max: float = 0) -> jax.Array:  # noqa: A002 - torch's names
    """Traced. How many elements each bin of equal width has, between the smallest and
    the largest if limits are equal.

    torch finds the bin of an element by a quotient, each step of which it rounds to the
    elements' dtype. It also counts in that dtype, in each of its threads; here counts
    are exact, and rounded at the end.

    Raises:
        RuntimeError: a limit, or an element without limits, is not finite; not in a
            program, which cannot know.
    """
    # Integers up to 2**24 are exact in float32.
    precision = jnp.finfo(
        x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.float32
    )

    def rounded(values: Any) -> jax.Array:
        # The compiler would leave out a conversion to a half and back.
        return jax.lax.reduce_precision(
            jnp.asarray(values, jnp.float32), precision.nexp, precision.nmant
        )

    values = x.ravel().astype(jnp.float32)
    low, high = rounded(min), rounded(max)
    if min == max and x.size:
        low, high = values.min(), values.max()
    require_values(
        jnp.isfinite, high - low, message="torch.histc: the range is not finite"
    )
    is_point = low == high
    low, high = jnp.where(is_point, low - 1, low), jnp.where(is_point, high + 1, high)
    scaled = rounded(rounded(values - low) * rounded(bins))
    bin_index = rounded(scaled / rounded(high - low)).astype(jnp.int32)
    is_inside = (values >= low) & (values <= high)
    # One beyond the last bin is dropped.
    bin_index = jnp.where(is_inside, jnp.minimum(bin_index, bins - 1), bins)
    return jnp.zeros(bins, jnp.int32).at[bin_index].add(1, mode="drop").astype(x.dtype)


_aten = torch.ops.aten
LOWERINGS = (
    Lowering(
        _aten.histc.default,
        on_arrays(histc),
        "compares with edges, which torch rounds differently",
    ),
)
METHODS = ()
