"""Each operation comes to the device once: as a function if that has a lowering, else as its operators."""

import jax
import pytest
import torch

from tpuport import compat
from tpuport.compat.operators import dispatching


@pytest.fixture
def dispatched(monkeypatch):
    """What comes to the device, in order."""
    compat.to_device(torch.rand(2)).mul(2)[0]  # what is probed once in a process
    calls = []
    environment = compat.environment()
    dispatch = type(environment).dispatch

    def record(self, func, types, args, kwargs):
        calls.append(func)
        return dispatch(self, func, types, args, kwargs)

    monkeypatch.setattr(type(environment), "dispatch", record)
    return calls


def _traced(function):
    def call(array):
        return function(compat.wrap(array)).jax()

    return jax.make_jaxpr(call)(jax.ShapeDtypeStruct((2, 4), "float32"))


FUNCTIONS = {
    "composed of one": (lambda x: x * 2, [torch.ops.aten.mul.Tensor]),
    "composed of two": (
        lambda x: torch.nn.functional.softsign(x),
        [torch.ops.aten.abs.default, torch.ops.aten.add.Tensor, torch.ops.aten.div.Tensor],
    ),
    "written in Python": (lambda x: torch.nn.functional.relu(x), [torch.ops.aten.relu.default]),
    "with a lowering": (lambda x: torch.nn.functional.linear(x, x), [torch.nn.functional.linear]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_operation_is_dispatched_once(dispatched, name):
    function, expected = FUNCTIONS[name]
    with compat.environment():
        _traced(function)
    assert dispatched == expected


@pytest.mark.parametrize("name", FUNCTIONS)
def test_outside_of_the_environment_the_same_operators_run(dispatched, name):
    function, expected = FUNCTIONS[name]
    x = torch.rand(2, 4)
    result = function(compat.to_device(x))
    assert dispatched[-len(expected) :] == expected
    torch.testing.assert_close(compat.to_torch(result), function(x))


def test_steps_are_found_once_for_each_operator(monkeypatch):
    asked = []
    table = (dispatching.Before(lambda function: bool(asked.append(function)), lambda call: None),)
    monkeypatch.setattr(dispatching, "_FIRST", table)
    dispatching._steps_for.cache_clear()
    dispatching._may_be_composed.cache_clear()
    x = compat.to_device(torch.rand(3))
    with compat.environment():
        x.sinh().sinh()
    dispatching._steps_for.cache_clear()
    assert asked == [torch.Tensor.sinh, torch.ops.aten.sinh.default]


def test_torchax_prints_each_operator_if_it_is_asked_to(monkeypatch, capsys):
    x = compat.to_device(torch.rand(3))
    monkeypatch.setattr(compat.environment().config, "debug_print_each_op", True)
    with compat.environment():
        x.sinh()
    assert "aten::sinh" in capsys.readouterr().err
