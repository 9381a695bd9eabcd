"""Which lines of a model of 16 bits compute products in float32, and where their operands became float32."""

import inspect

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.nn import functional

import tpuport
import tpuport.attention
from tpuport import compat
from tpuport.topology.advice import find_float32_products

WIDTH = 64
HIDDEN = jax.ShapeDtypeStruct((2, 16, WIDTH), jnp.bfloat16)
TABLE = jax.ShapeDtypeStruct((16, WIDTH), jnp.float32)


@pytest.fixture(scope="module", autouse=True)
def enabled():
    tpuport.enable()
    yield
    tpuport.disable()


def _trace(function, *arguments, dtype=jnp.bfloat16):
    """The products of a function of weights by name, and of arguments."""
    names = ("query", "key", "value", "out")
    weights = {name: jax.ShapeDtypeStruct((WIDTH, WIDTH), dtype) for name in names}

    def program(weights, *arguments):
        with compat.environment():
            return compat.as_jax(function(compat.as_torch(weights), *compat.as_torch(arguments)))

    return find_float32_products(jax.make_jaxpr(program)(weights, *arguments))


def _line(function, text):
    """The number of the line of a function that contains a text."""
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def _attend(q, k, v):
    return functional.scaled_dot_product_attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)).squeeze(1)


def test_attention_whose_rotary_table_is_float32():
    def model(weights, x, table):
        q = (x @ weights["query"]) * table
        k = (x @ weights["key"]) * table
        v = (x @ weights["value"]).float()
        y = _attend(q, k, v)
        return y.to(x.dtype) @ weights["out"]

    with tpuport.attention.register():
        [product] = _trace(model, HIDDEN, TABLE)
    assert product.kind == "attention"
    lines = [origin.source.line for origin in product.origins]
    assert lines == [_line(model, text) for text in ("q =", "k =", "v =")]
    assert str(product.origins[0]).startswith("16 bits met float32 (the argument arguments[1]) at ")
    assert product.origins[2].description == "converted from bfloat16"
    # Scores, and their sums of values, of two rows.
    assert product.flops == 2 * 2 * 16 * 16 * WIDTH * 2


def test_the_line_of_each_product():
    def model(weights, x):
        wide = x.float()
        hidden = wide @ weights["query"].float()
        y = hidden.to(x.dtype) @ weights["out"]
        return y, wide.transpose(1, 2) @ hidden

    first, second = _trace(model, HIDDEN)
    assert [first.source.line, second.source.line] == [_line(model, "hidden ="), _line(model, "return")]
    assert first.kind == "matrix product"
    # The first product is float32 because of the same line.
    assert [origin.source.line for origin in second.origins] == [_line(model, "wide =")]


def test_layers_of_one_line_are_one():
    def model(weights, x):
        for _ in range(3):
            x = (x.float() @ weights["query"].float()).to(x.dtype)
        return x

    [product] = _trace(model, HIDDEN)
    assert product.times == 3
    assert product.flops == 3 * 2 * 2 * 16 * WIDTH * WIDTH


def test_a_convolution():
    def model(weights, x):
        kernel = weights["query"][:, :, None].float()
        return functional.conv1d(x.float().transpose(1, 2), kernel)

    [product] = _trace(model, HIDDEN)
    assert product.kind == "convolution"


def test_16_bits_throughout_are_not_named():
    def model(weights, x):
        normal = functional.rms_norm(x.float(), (WIDTH,)).to(x.dtype)
        q, k, v = (normal @ weights[name] for name in ("query", "key", "value"))
        return _attend(q, k, v).softmax(-1, dtype=torch.float32)

    with tpuport.attention.register():
        assert _trace(model, HIDDEN) == ()


def test_a_model_of_float32_is_meant_so():
    def model(weights, x):
        return x @ weights["query"]

    wide = jax.ShapeDtypeStruct(HIDDEN.shape, jnp.float32)
    assert _trace(model, wide, dtype=jnp.float32) == ()
