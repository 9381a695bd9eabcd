"""Masks as structure, against the arrays that they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpuport.attention.mask import Mask


@pytest.mark.parametrize(
    "mask",
    [
        Mask(),
        Mask(right=0),
        Mask(right=0, offset=2),
        Mask(left=1, right=0, offset=jnp.int32(1)),
        Mask(left=2, right=1),
        Mask(right=-2),
        Mask(
            right=0,
            query_segments_BQ=jnp.array([[0, 0, 1, 1, 2]]),
            key_segments_BT=jnp.array([[0, 0, 1, 1, 1, 2, 2]]),
        ),
        Mask(queries_BQ=jnp.array([[True, False, True, True, True]])),
    ],
    ids=repr,
)
def test_queries_that_see_no_key_are_those_of_the_array(mask: Mask) -> None:
    padding = jax.random.bernoulli(jax.random.key(0), 0.4, (6, 7)).at[0].set(False).at[1].set(True)
    mask = Mask(**(vars(mask) | {"keys_BT": padding}))
    blind = mask.blind_queries(5, 7)
    assert blind is not None
    dense = mask.to_dense(5, 7)
    assert dense is not None
    np.testing.assert_array_equal(blind, ~dense.any(-1, keepdims=True))
