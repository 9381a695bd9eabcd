"""How often loops run: in programs compiled here, and in those of the compiler for TPUs."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from tpuport.topology import hlo

CONDITIONS = {
    "LT": lambda i, n: i < n,
    "LE": lambda i, n: i <= n,
    "GT": lambda i, n: i > n,
    "NE": lambda i, n: i != n,
}


def rounds(program) -> list[int]:
    return [instruction.rounds for instruction in program.instructions if instruction.operation == "while"]


def counted(first: int, step: int, limit: int, direction: str) -> str:
    """A loop as the compiler writes it, with the limit among what it carries."""
    return f"""HloModule jit_f

%body (b: (s32[], f32[8], s32[])) -> (s32[], f32[8], s32[]) {{
  %b = (s32[]{{:T(128)}}, f32[8]{{0}}, s32[]{{:T(128)}}) parameter(0)
  %one = s32[]{{:T(128)}} constant({step})
  %i = s32[]{{:T(128)}} get-tuple-element(%b), index=0
  %i2 = s32[]{{:T(128)S(6)}} copy(%i)
  %next = s32[]{{:T(128)}} add(%i2, %one)
  %x = f32[8]{{0}} get-tuple-element(%b), index=1
  %n = s32[]{{:T(128)}} get-tuple-element(%b), index=2
  ROOT %t = (s32[]{{:T(128)}}, f32[8]{{0}}, s32[]{{:T(128)}}) tuple(%next, %x, %n)
}}

%compares (c0: s32[], c1: s32[]) -> pred[] {{
  %c0 = s32[]{{:T(128)}} parameter(0)
  %c1 = s32[]{{:T(128)}} parameter(1)
  ROOT %c = pred[] compare(%c0, %c1), direction={direction}
}}

%condition (d: (s32[], f32[8], s32[])) -> pred[] {{
  %d = (s32[]{{:T(128)}}, f32[8]{{0}}, s32[]{{:T(128)}}) parameter(0)
  %di = s32[]{{:T(128)}} get-tuple-element(%d), index=0
  %dn = s32[]{{:T(128)}} get-tuple-element(%d), index=2
  ROOT %f = pred[] fusion(%di, %dn), kind=kLoop, calls=%compares
}}

ENTRY %main (p: f32[8]) -> f32[8] {{
  %p = f32[8]{{0}} parameter(0)
  %first = s32[]{{:T(128)}} constant({first})
  %start = s32[]{{:T(128)}} copy(%first)
  %limit = s32[]{{:T(128)}} constant({limit})
  %t0 = (s32[]{{:T(128)}}, f32[8]{{0}}, s32[]{{:T(128)}}) tuple(%start, %p, %limit)
  %w = (s32[]{{:T(128)}}, f32[8]{{0}}, s32[]{{:T(128)}}) while(%t0), condition=%condition, body=%body
  ROOT %r = f32[8]{{0}} get-tuple-element(%w), index=1
}}
"""


@given(
    st.integers(-20, 20), st.integers(-4, 4), st.integers(0, 12), st.integers(0, 3), st.sampled_from(list(CONDITIONS))
)  # fmt: skip
def test_a_counted_loop_runs_as_often_as_python_runs_it(first, step, wanted, beyond, direction) -> None:
    limit = first + step * wanted + (0 if direction == "NE" else beyond)
    i, times = first, 0
    while CONDITIONS[direction](i, limit) and times < 1000:
        i, times = i + step, times + 1
    [found] = rounds(hlo.parse(counted(first, step, limit, direction)))
    assert found == (times if 0 < times < 1000 else 1), "one that never ends, or never runs, counts once"


def test_a_count_that_the_compiler_tells() -> None:
    told = counted(0, 1, 9, "LT").replace("condition=%condition, body=%body", (
        'condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"},"x":{}}'
    ))  # fmt: skip
    assert rounds(hlo.parse(told)) == [5]


def test_a_loop_without_a_constant_counts_once() -> None:
    text = counted(0, 1, 9, "LT").replace("constant(9)", "parameter(1)")
    assert rounds(hlo.parse(text)) == [1]


@settings(max_examples=5, deadline=None)
@given(st.integers(2, 9), st.integers(2, 9))
def test_loops_in_loops_of_this_compiler(outer, inner) -> None:
    def nested(weights, x):
        def block(x, weight):
            return lax.fori_loop(3, 3 + inner, lambda _, x: jnp.sin(x) @ weight, x), None

        return lax.scan(block, x, weights)[0]

    text = jax.jit(nested).lower(jnp.ones((outer, 8, 8)), jnp.ones((8, 8))).compile().as_text()
    program = hlo.parse(text)
    assert sorted(rounds(program)) == sorted([outer, inner])
    products = {
        instruction.times
        for instruction in program.instructions
        if instruction.operation == "dot" or "gemm" in instruction.line
    }
    assert products == {outer * inner}


def test_loops_in_loops_of_the_compiler_for_tpus(compile_program, array) -> None:
    def nested(weights, x):
        def block(x, weight):
            return lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ weight), x), None

        return lax.scan(block, x, weights, reverse=True)[0]

    program, _ = compile_program(nested, array(5, 256, 256), array(256, 256))
    assert {
        instruction.times for instruction in program.instructions if instruction.operation == "convolution"
    } in ({15}, {5})
    total = sum(
        instruction.times for instruction in program.instructions if instruction.operation == "convolution"
    )
    assert total == 15, "in a loop, or unrolled"


@pytest.mark.parametrize("stop", [2.0])
def test_a_loop_that_looks_at_what_it_computes_counts_once(stop, compile_program, array) -> None:
    def steps(weight, x):
        return lax.while_loop(lambda x: jnp.max(x) < stop, lambda x: jnp.tanh(x @ weight), x)

    program, _ = compile_program(steps, array(256, 256), array(256, 256))
    assert rounds(program) == [1]
