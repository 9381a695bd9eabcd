"""What counts as the same piece of a program, and where two differ."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpuport.compilation.layers.equivalence import Comparison

X = jnp.ones((2, 3))


def pieces(one, other, *args):
    return [jax.make_jaxpr(function)(*(args or (X,))).jaxpr.eqns for function in (one, other)]


def power(x, n):
    return jax.nn.relu(jnp.tanh(x) ** n)


SAME = {
    "traced twice": (lambda x: power(x, 3), lambda x: power(x, 3)),
    "names": (jax.jit(lambda x: jnp.sin(x) * 2), jax.jit(lambda y: jnp.sin(y) * 2)),
    "literals from outside": (lambda x: x * 2.0, lambda x: x * 3.0),
    "loops": (
        lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0],
        lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0],
    ),
}
DIFFERENT = {
    "parameter": (lambda x: power(x, 3), lambda x: power(x, 4), "integer_pow with y=3 in one, 4 in the other"),
    "operation": (jnp.sin, jnp.cos, "sin in one, cos in the other"),
    "wiring": (lambda x: jnp.sin(x) - jnp.cos(x), lambda x: jnp.cos(x), "sin in one, cos in the other"),
    "operands": (
        lambda x: (jnp.sin(x), jnp.cos(x), jnp.sin(x) - jnp.cos(x))[2],
        lambda x: (y := jnp.sin(x), z := jnp.cos(x), jnp.sin(x), jnp.cos(x), z - y)[4],
        "other operands",
    ),
    "inside": (
        jax.jit(lambda x: jnp.sin(x) * 2), jax.jit(lambda x: jnp.sin(x) * 3), "jit with jaxpr",
    ),
    "length": (
        lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0],
        lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=4)[0],
        "scan with length",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_the_same(name) -> None:
    assert Comparison().first_difference(*pieces(*SAME[name])) is None


@pytest.mark.parametrize("name", DIFFERENT)
def test_different(name) -> None:
    one, other, said = DIFFERENT[name]
    difference = Comparison().first_difference(*pieces(one, other))
    assert difference is not None
    assert said in difference.description


def test_parameters_that_are_functions_and_arrays() -> None:
    def scaled(factor):
        return lambda x: x * factor

    compare = Comparison()
    assert compare.is_equal(scaled(2), scaled(2))
    assert not compare.is_equal(scaled(2), scaled(3))
    assert compare.is_equal(functools.partial(power, n=2), functools.partial(power, n=2))
    assert not compare.is_equal(functools.partial(power, n=2), functools.partial(power, n=3))
    assert compare.is_equal({"a": np.arange(3)}, {"a": np.arange(3)})
    assert not compare.is_equal([np.float32(0.0)], [np.float32(-0.0)])
    assert not compare.is_equal(object(), object())
    assert not compare.is_equal(1, True)
