"""`tpuport.compat.jaxprs`: equations with nested ones, and which operand becomes which argument."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from tpuport.compat import jaxprs

VECTOR, MATRIX = jnp.ones(4), jnp.ones((3, 4))


def equation_of(function: Callable, *args: Any) -> Any:
    """The last equation of a traced function."""
    return jax.make_jaxpr(function)(*args).jaxpr.eqns[-1]


def test_operands_of_a_scan_are_constants_then_carries_then_rows() -> None:
    def scan(constant: Any, carry: Any, rows: Any) -> Any:
        return jax.lax.scan(lambda state, row: (state + constant, row * constant), carry, rows)

    equation = equation_of(scan, VECTOR, VECTOR, MATRIX)
    (body,) = jaxprs.sub_jaxprs(equation)
    assert (body.kind, body.times) == ("scan", 3)
    assert body.operands == tuple(equation.invars)
    assert (body.carries, body.rows) == (range(1, 2), range(2, 3))
    assert jaxprs.callee(equation) is None


def test_both_parts_of_a_while_loop_get_their_constants_and_the_state() -> None:
    def loop(limit: Any, step: Any, state: Any) -> Any:
        return jax.lax.while_loop(lambda x: x < limit, lambda x: x + step, state)

    equation = equation_of(loop, 10.0, 1.0, 0.0)
    condition, body = jaxprs.sub_jaxprs(equation)
    limit, step, state = equation.invars
    assert (condition.kind, condition.operands) == ("while condition", (limit, state))
    assert (body.kind, body.operands, body.carries) == ("while body", (step, state), range(1, 2))


def test_branches_do_not_get_the_index() -> None:
    equation = equation_of(lambda i, x: jax.lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], x), 1, VECTOR)
    branches = jaxprs.sub_jaxprs(equation)
    assert [branch.kind for branch in branches] == ["branch"] * 3
    assert all(branch.operands == tuple(equation.invars[1:]) for branch in branches)


def with_derivative(function: Callable) -> Callable:
    """The function with a derivative of its own."""
    differentiable = jax.custom_jvp(function)
    differentiable.defjvp(lambda primals, tangents: (function(*primals), tangents[0]))
    return differentiable


@pytest.mark.parametrize("transform", [jax.jit, jax.checkpoint, with_derivative])
def test_a_call_runs_its_callee_on_the_operands(transform: Callable) -> None:
    equation = equation_of(transform(lambda x, y: x + jnp.sin(y)), VECTOR, VECTOR)
    callee = jaxprs.callee(equation)
    assert callee is not None
    assert callee.kind == "call"
    assert callee.operands == tuple(equation.invars)
    assert [inner.primitive.name for inner in callee.jaxpr.eqns] == ["sin", "add"]


def test_equations_are_visited_before_those_inside_of_them_and_counted() -> None:
    def nested(rows: Any) -> Any:
        inner = jax.jit(jnp.sin)
        return jax.lax.scan(lambda state, row: (state + inner(row).sum(), None), 0.0, rows)[0]

    visits = list(jaxprs.walk_equations(jax.make_jaxpr(nested)(MATRIX)))
    names = [(visit.equation.primitive.name, visit.times, visit.is_leaf) for visit in visits]
    assert names[:3] == [("scan", 1, False), ("jit", 3, False), ("sin", 3, True)]


def test_kernels_are_leaves() -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = jnp.sin(x_ref[...])

    call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32), interpret=True)
    traced = jax.make_jaxpr(call)(jnp.ones((8, 128)))
    kernels = [v for v in jaxprs.walk_equations(traced) if v.equation.primitive.name == "pallas_call"]
    assert [visit.is_leaf for visit in kernels] == [True]
    assert all(visit.equation.primitive.name != "sin" for visit in jaxprs.walk_equations(traced))
    assert jaxprs.callee(kernels[0].equation) is None
    (body,) = jaxprs.sub_jaxprs(kernels[0].equation)
    assert (body.kind, body.operands) == ("kernel", ())
    assert any(equation.primitive.name == "sin" for equation in body.jaxpr.eqns)


def test_replacing_a_callee_keeps_the_rest_of_an_equation() -> None:
    equation = equation_of(jax.jit(jnp.sin), VECTOR)
    cosine = jax.make_jaxpr(jnp.cos)(VECTOR)
    replaced = jaxprs.replace_sub_jaxprs(equation, lambda closed: cosine)
    assert replaced.params["jaxpr"] is cosine
    assert (replaced.invars, replaced.primitive) == (equation.invars, equation.primitive)


def test_producers_names_and_frames() -> None:
    closed = jax.make_jaxpr(lambda weights: jnp.split(weights["up"], 2))({"up": VECTOR})
    jaxpr = closed.jaxpr
    producer = jaxprs.producers(jaxpr)[jaxpr.outvars[1]]  # type: ignore[index]
    assert (producer.equation.primitive.name, producer.output) == ("split", 1)
    assert jaxprs.argument_names(closed) == ("weights['up']",)
    assert __file__ in [file for file, _, _ in jaxprs.source_frames(producer.equation)]
