"""A fault of the compiler is told apart from one of tpuport: by a primitive that is right alone, and compiled wrong."""

import jax
import pytest
import torch
from jax.extend.core import Primitive
from jax.interpreters import mlir

import tpuport
from tpuport import compat
from tpuport.compat.jaxprs import run_operations


def _primitive(name, alone, compiled):
    primitive = Primitive(name)
    primitive.def_impl(alone)
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, mlir.lower_fun(compiled, multiple_results=False))
    return primitive


# On the device each adds one, or so it should.
miscompiled = _primitive("miscompiled", lambda x: x + 1, lambda x: x + 1.5)
mistaken = _primitive("mistaken", lambda x: x + 1.5, lambda x: x + 1.5)


class Miscompiled(torch.nn.Module):
    primitive = miscompiled

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        y = x * self.scale
        if not compat.is_ported(y):
            return torch.tanh(y + 1) * 2
        y = compat.wrap(self.primitive.bind(y.jax()))  # the line
        return torch.tanh(y) * 2


class Mistaken(Miscompiled):
    primitive = mistaken


def test_a_fault_of_the_compiler_is_named():
    result = tpuport.check(Miscompiled(), torch.arange(3.0))
    [finding] = result.errors
    assert finding.kind == "compiler"
    assert finding.message.startswith("the compiler of jaxlib ")
    assert finding.details["operation"] == "miscompiled"
    assert finding.source.code.endswith("# the line")
    assert "nothing is wrong with the model" in finding.remedy
    assert "fault of the compiler" in result.verdict


def test_what_is_wrong_by_itself_is_no_fault_of_the_compiler():
    [finding] = tpuport.check(Mistaken(), torch.arange(3.0)).errors
    assert finding.kind == "result"


@pytest.mark.parametrize("traced", [False, True])
def test_operations_one_by_one_give_what_the_program_gives(traced):
    @jax.custom_jvp
    def square(x):
        return x * x

    square.defjvp(lambda primals, tangents: (square(*primals), 2 * primals[0] * tangents[0]))

    def function(x, y):
        z, total = jax.lax.scan(lambda carry, row: (carry + row, square(carry)), x[0], x)
        return jax.nn.gelu(z) + jax.lax.cond(y > 0, square, lambda x: -x, z), total, 3.0 * square(y)

    def run(x, y):
        steps = run_operations(jax.make_jaxpr(function)(x, y), [x, y])
        while True:
            try:
                equation, _ = next(steps)
                assert equation.primitive.name not in {"jit", "pjit", "custom_jvp_call"}
            except StopIteration as end:
                return end.value

    x, y = jax.random.normal(jax.random.key(0), (4, 3)), 2.0
    results = (jax.jit(run) if traced else run)(x, y)
    for one, other in zip(results, function(x, y), strict=True):
        assert jax.numpy.allclose(one, other, 1e-6)
