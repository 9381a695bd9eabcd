"""What a traced program says of the mask of attention that a model writes out."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from tpuport.topology.advice import advise
from tpuport.topology.advice.attention_scores import find_unreadable_mask

SIDE, LENGTH = 32, 1024


def window(places, mask, numbers):
    """Within five rows and five columns of an image."""
    rows, columns = places // SIDE, places % SIDE
    near = [jnp.abs(one[:, None] - one[None]) <= 5 for one in (rows, columns)]
    return near[0] & near[1]


def causal(places, mask, numbers):
    return places[:, None] >= places[None]


def segments(places, mask, numbers):
    return (numbers[0, :, None] == numbers[0, None]) & causal(places, mask, numbers)


def given(places, mask, numbers):
    return mask > 0


def attention(query, mask, numbers, made, added):
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, query)
    seen = made(jnp.arange(LENGTH), mask, numbers)
    scores = scores + jnp.where(seen, 0.0, -1e9) if added else jnp.where(seen, scores, -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), query)


QUERY = jax.ShapeDtypeStruct((1, 2, LENGTH, 64), jnp.float32)
MASK = jax.ShapeDtypeStruct((LENGTH, LENGTH), jnp.float32)
NUMBERS = jax.ShapeDtypeStruct((1, LENGTH), jnp.int32)


def traced(made, added, looped=False):
    def f(query, mask, numbers):
        if not looped:
            return attention(query, mask, numbers, made, added)
        return jax.lax.scan(lambda x, _: (attention(x, mask, numbers, made, added), None), query, None, 2)[0]

    return jax.make_jaxpr(f)(QUERY, MASK, NUMBERS)


@pytest.mark.parametrize("looped", [False, True], ids=["once", "looped"])
@pytest.mark.parametrize("added", [False, True], ids=["selected", "added"])
@pytest.mark.parametrize(
    ("made", "known"), [(window, False), (causal, True), (segments, True), (given, False)]
)
def test_comparisons_of_positions_are_read_and_nothing_else(made, known, added, looped) -> None:
    found = find_unreadable_mask(traced(made, added, looped).jaxpr, LENGTH, LENGTH)
    assert (found is None) == known


def test_scores_without_a_mask_have_none() -> None:
    jaxpr = jax.make_jaxpr(lambda x: jax.nn.softmax(x @ x.swapaxes(2, 3)) @ x)(QUERY)
    assert find_unreadable_mask(jaxpr.jaxpr, LENGTH, LENGTH) is None


@pytest.mark.parametrize(("made", "kernel"), [(window, False), (causal, True)])
def test_a_mask_that_the_kernel_cannot_read_is_no_reason_to_call_it(programs, made, kernel) -> None:
    """By arithmetic: there is no program of the attention, which would take longer to compile."""
    mesh = programs(tp=4)
    evidence = mesh.evidence(lambda weights, x: x + 1, {}, mesh.array((8, 128)))
    [finding] = advise(dataclasses.replace(evidence, jaxpr=traced(made, False), program=None))
    assert finding.rule == "TPC004"
    assert finding.remedy.startswith("call torch.nn.functional.scaled_dot_product_attention") == kernel
    assert ("not less time" in finding.remedy) != kernel
