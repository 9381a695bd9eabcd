"""FLOPs with loops, against products counted by hand and against the compiler where there is no loop."""

import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from tpuport.topology import hlo
from tpuport.topology.hlo.flop_counts import _count_hits, instruction_flops

N = 256


def test_a_program_without_loops_has_the_compilers_count(compile_program, array) -> None:
    program, flops = compile_program(lambda a, b: jnp.tanh(a @ b).sum(), array(N, N), array(N, 2 * N))
    assert hlo.count_flops(program, flops) == flops
    assert flops >= 2 * N * N * 2 * N


@pytest.mark.parametrize("layers", [3, 10])
def test_a_scan_counts_each_of_its_rounds(layers, compile_program, array) -> None:
    def blocks(weights, x):
        return lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), x, weights)[0]

    program, flops = compile_program(blocks, array(layers, N, N), array(N, N))
    product = 2 * N**3
    assert product <= flops < 1.02 * product, "the compiler counts the body once"
    assert layers * product <= hlo.count_flops(program, flops) < 1.02 * layers * product


def convolved(x, kernel, **options):
    return lax.conv_general_dilated(x, kernel, **{"window_strides": (1, 1), "padding": "SAME"} | options)


TRANSPOSED = functools.partial(convolved, lhs_dilation=(2, 2), padding=[(2, 2), (2, 2)])
CASES = {
    "product": (lambda a, b: a @ b, (96, 160), (160, 224)),
    "batched": (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (6, 64, 128), (6, 128, 96)),
    "heads": (lambda a, b: jnp.einsum("bqhd,bkhd->bhqk", a, b), (2, 64, 4, 32), (2, 80, 4, 32)),
    "convolution": (convolved, (2, 16, 20, 24), (32, 16, 3, 3)),
    "strided": (functools.partial(convolved, window_strides=(2, 3)), (2, 16, 20, 24), (32, 16, 3, 3)),
    "transposed": (
        functools.partial(convolved, lhs_dilation=(2, 2), padding=[(2, 2), (2, 2)]),
        (2, 16, 20, 24),
        (32, 16, 4, 4),
    ),
    "grouped": (functools.partial(convolved, feature_group_count=4), (2, 16, 20, 24), (32, 4, 3, 3)),
    "dilated": (functools.partial(convolved, rhs_dilation=(2, 2)), (2, 16, 20, 24), (32, 16, 3, 3)),
    "elementwise": (lambda a, b: jnp.maximum(a, 0) * a + b, (64, 128), (64, 128)),
}


# Of the others the compiler for TPUs takes seconds; the next test has them all.
@pytest.mark.parametrize(
    "name",
    [
        "product",
        "batched",
        "heads",
        "convolution",
        pytest.param("dilated", marks=pytest.mark.slow),
        "elementwise",
    ],
)
def test_our_count_is_the_compilers(name, compile_program, array) -> None:
    function, *shapes = CASES[name]
    program, flops = compile_program(function, *(array(*shape) for shape in shapes))
    ours = program.total(functools.partial(instruction_flops, program))
    assert ours == pytest.approx(flops, rel=0.01)


PRODUCT = 2 * N**3


@pytest.mark.parametrize(
    ("dtype", "precision", "wanted"),
    [
        ("int8", None, (PRODUCT, 0, 0)), ("float8_e4m3fn", None, (0, PRODUCT, 0)), ("bfloat16", "highest", (0, 0, 0)),
        ("float32", None, (0, 0, 0)), ("float32", "high", (0, 0, 2 * PRODUCT)),
        ("float32", "highest", (0, 0, 5 * PRODUCT)),
    ],
)  # fmt: skip
def test_products_at_another_rate_than_that_of_bfloat16(
    dtype, precision, wanted, compile_program, array
) -> None:
    def product(a, b):
        return lax.dot(a, b, precision=precision, preferred_element_type=made)

    made = {"int8": jnp.int32, "float8_e4m3fn": jnp.float32}.get(dtype)
    program, _ = compile_program(product, *[array(N, N, dtype=dtype)] * 2)
    assert hlo.count_other_rate_flops(program) == wanted
    assert hlo.count_product_flops(program) == PRODUCT


def test_our_count_is_this_compilers() -> None:
    for name, (function, *shapes) in CASES.items():
        compiled = jax.jit(function).lower(*(jnp.ones(shape) for shape in shapes)).compile()
        program = hlo.parse(compiled.as_text())
        if any(instruction.operation == "custom-call" for instruction in program.instructions):
            continue  # a library of this machine
        ours = program.total(functools.partial(instruction_flops, program))
        assert ours == pytest.approx((compiled.cost_analysis() or {})["flops"], rel=0.02), name


@given(st.integers(1, 30), st.integers(1, 5), st.integers(-40, 40), st.integers(1, 5), st.integers(0, 60))
def test_places_that_meet_a_number(out, stride, start, dilated, last) -> None:
    places = (start + stride * place for place in range(out))
    wanted = sum(0 <= place <= last and place % dilated == 0 for place in places)
    assert _count_hits(out, stride, start, dilated, last) == wanted
