"""Histograms of elements, and of points of several dimensions."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.operators.declarations import Lowering, on_arrays
from tpuport.compat.operators.samplers import require, require_values


def histogram(
    x: jax.Array,
    bins: int | jax.Array,
    *,
    range: Sequence[float] | None = None,  # noqa: A002 - torch's name
    weight: jax.Array | None = None,
    density: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Traced. How many elements, or what weight, each bin has, and the bins' edges;
    elements outside do not count.
    """
    edges = bins if isinstance(bins, jax.Array) else _even_edges(x, bins, range)
    flat = x.ravel()
    weights = jnp.ones_like(flat) if weight is None else weight.ravel()
    counts = (
        jnp.zeros(edges.size - 1, x.dtype)
        .at[_bin_of(flat, edges)]
        .add(weights, mode="drop")
    )
    if density:
        counts = counts / (counts.sum() * jnp.diff(edges))
    return counts, edges


def _even_edges(x: jax.Array, bins: int, limits: Sequence[float] | None) -> jax.Array:
    """Traced. The edges of bins of equal width, between the limits or the smallest and
    the largest element.
    """
    low, high = limits or (0.0, 1.0)
    if limits is None and x.size:
        low, high = x.min(), x.max()
    # Where all elements are equal, the bins are around them.
    margin = jnp.where(jnp.asarray(low) == jnp.asarray(high), 0.5, 0.0)
    return jnp.linspace(low - margin, high + margin, bins + 1, dtype=x.dtype)


def _bin_of(values: jax.Array, edges: jax.Array) -> jax.Array:
    """Traced. The bin of each value, of which the last has its end; outside of all,
    their number.
    """
    bin_index = _upper_bound(edges, values) - 1
    bins = edges.size - 1
    is_inside = (values >= edges[0]) & (values <= edges[-1])
    return jnp.where(is_inside, jnp.minimum(bin_index, bins - 1), bins)


def _upper_bound(edges: jax.Array, values: jax.Array) -> jax.Array:
    """Traced. C++'s `upper_bound`, which torch uses: it agrees also on edges that are
    in no order.
    """
    first = jnp.zeros(values.shape, jnp.int32)
    length = jnp.full(values.shape, edges.size, jnp.int32)
    for _ in range(edges.size.bit_length()):
        half = length // 2
        middle = first + half
        is_before = values < edges[jnp.minimum(middle, edges.size - 1)]
        is_searched = length > 0
        goes_right = is_searched & ~is_before
        first = jnp.where(goes_right, middle + 1, first)
        length = jnp.where(
            goes_right, length - half - 1, jnp.where(is_searched, half, length)
        )
    return first


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


def bin_edges(
    x: jax.Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,  # noqa: A002 - torch's name
    weight: jax.Array | None = None,
    density: bool = False,
) -> list[jax.Array]:
    """Traced. The edges of bins of equal width, for each coordinate of points [..., D].

    Args:
        x: the points.
        bins: how many there are, for each of the D coordinates.
        range: their first and last edges, D pairs one after the other; the points' own
            if None.
        weight: not asked for; nor is `density`.
    """
    del weight, density
    points = x.reshape(-1, x.shape[-1])
    _require_bins(x, bins)
    limits = (
        [None] * len(bins)
        if range is None
        else list(zip(range[::2], range[1::2], strict=True))
    )
    return [
        _even_edges(points[:, axis], count, limits[axis])
        for axis, count in enumerate(bins)
    ]


def histogram_of_counts(
    x: jax.Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,  # noqa: A002 - torch's name
    weight: jax.Array | None = None,
    density: bool = False,
) -> jax.Array:
    """Traced. How many points, or what weight, each of the bins of equal width has:
    [bins of each coordinate].
    """
    return histogram_of_edges(
        x, bin_edges(x, bins, range=range), weight=weight, density=density
    )


def histogram_of_edges(
    x: jax.Array,
    bins: Sequence[jax.Array],
    *,
    weight: jax.Array | None = None,
    density: bool = False,
) -> jax.Array:
    """Traced. How many points, or what weight, each bin has between given edges; points
    outside do not count.
    """
    points = x.reshape(-1, x.shape[-1])
    _require_bins(x, bins)
    weights = jnp.ones(len(points), x.dtype) if weight is None else weight.ravel()
    places = [_bin_of(points[:, axis], edges) for axis, edges in enumerate(bins)]
    sizes = [edges.size - 1 for edges in bins]
    # One beyond the last bin is dropped.
    counts = jnp.zeros(sizes, x.dtype).at[tuple(places)].add(weights, mode="drop")
    if density:
        counts = counts / counts.sum()
        for axis, edges in enumerate(bins):
            counts = counts / jnp.diff(edges).reshape(
                -1, *(1,) * (len(bins) - axis - 1)
            )
    return counts


def _require_bins(x: jax.Array, bins: Sequence[Any]) -> None:
    message = "histogramdd: The size of bins must be equal to the innermost dimension of the input."
    require(len(bins) == x.shape[-1], message)


_aten = torch.ops.aten
_MISSING = "has no lowering"
LOWERINGS = (
    Lowering(
        _aten.histc.default,
        on_arrays(histc),
        "compares with edges, which torch rounds differently",
    ),
    Lowering(_aten.histogram.bin_ct, on_arrays(histogram), _MISSING),
    Lowering(_aten.histogram.bins_tensor, on_arrays(histogram), _MISSING),
    Lowering(_aten._histogramdd_bin_edges.default, on_arrays(bin_edges), _MISSING),
    Lowering(
        _aten._histogramdd_from_bin_cts.default,
        on_arrays(histogram_of_counts),
        _MISSING,
    ),
    Lowering(
        _aten._histogramdd_from_bin_tensors.default,
        on_arrays(histogram_of_edges),
        _MISSING,
    ),
)
METHODS = ()
