"""Values computed by NumPy are those of XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpuport.attention.provenance import host_values
from tpuport.attention.provenance.graph import Graph
from tpuport.attention.provenance.primitives import order_operations

FUNCTIONS = {
    "positions": lambda: jnp.arange(7)[None] + 3,
    "sequences": lambda: jnp.cumsum(jnp.diff((jnp.arange(7) > 3).astype(jnp.int32), prepend=0) != 0),
    "from the end": lambda: jnp.arange(6).reshape(2, 3)[:, ::2].T.cumsum(0) * 2,
    "reverse": lambda: jax.lax.cumsum(jnp.arange(6).reshape(2, 3), axis=1, reverse=True),
    "wraps around": lambda: jnp.arange(4) * (2**30) + 2**30,
    "narrow": lambda: (jnp.arange(300).astype(jnp.uint8) - 7).astype(jnp.int8).cumsum(dtype=jnp.int8),
    "conditions": lambda: ~((jnp.arange(5) > 1) & (jnp.arange(5)[:, None] <= 3)) | jnp.eye(5, dtype=bool),
    "extremes": lambda: jnp.maximum(jnp.arange(5) - 3, 0) + jnp.minimum(jnp.arange(5), 2)[:, None],
}


def _node_in_trace(function, read):
    """What `read` makes of the nodes of a function's result, while it is traced."""
    found = []

    def traced(zero):
        found.append(read(order_operations(Graph().node(function()))))
        return zero

    jax.jit(traced).trace(0)
    return found[0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_xla_computes(name):
    values = _node_in_trace(FUNCTIONS[name], host_values.compute)
    expected = np.asarray(FUNCTIONS[name]())
    assert values.dtype == expected.dtype
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize(
    "function",
    [lambda: jnp.arange(3) * 0.5, lambda: jnp.arange(70_000) + 1, lambda: jnp.sort(jnp.arange(3))],
    ids=["floats", "large", "another operation"],
)
def test_the_rest_is_left_to_xla(function):
    assert _node_in_trace(function, host_values.compute) is None
