"""What torch refuses is refused with its own words, and results have its dtypes."""

import warnings

import jax
import pytest
import torch

from tpuport import compat
from tpuport.compat import narrowing
from tpuport.compat.operators import expectations
from tpuport.errors import MissingDtypeError, PortError


def _device(*tensors):
    return [compat.wrap(compat.to_jax(tensor)) for tensor in tensors]


X, HALF, INTEGERS = torch.randn(3, 4), torch.randn(4, 2).bfloat16(), torch.arange(4)

REFUSED = {
    "product of two dtypes": lambda x, h, i: torch.mm(x, h),
    "linear layer of another dtype": lambda x, h, i: torch.nn.functional.linear(x, h.T),
    "product by operator": lambda x, h, i: x @ h,
    "einsum": lambda x, h, i: torch.einsum("ij,jk->ik", x, h),
    "convolution": lambda x, h, i: torch.nn.functional.conv1d(
        x[None], h.T.reshape(2, 2, 2)[:, :1].repeat(1, 3, 1)
    ),
    "shapes that do not fit": lambda x, h, i: x + h,
    "dimension": lambda x, h, i: x.sum(5),
    "index too long": lambda x, h, i: x.gather(1, i[:, None]),
    "division in place of integers": lambda x, h, i: i.clone().div_(2),
    "logarithm in place of integers": lambda x, h, i: i.clone().log_(),
    "wider result in place": lambda x, h, i: x[0].clone().mul_(x),
    "size of a view": lambda x, h, i: x.view(5, 2),
    "k too large": lambda x, h, i: x.topk(9),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_torchs(name):
    with pytest.raises((RuntimeError, IndexError)) as torchs:
        REFUSED[name](X, HALF, INTEGERS)
    with compat.environment(), pytest.raises(type(torchs.value)):
        REFUSED[name](*_device(X, HALF, INTEGERS))


def test_errors_name_the_operator():
    with compat.environment(), pytest.raises(RuntimeError, match=r"mm"):
        torch.mm(*_device(X, HALF))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_a_computation_in_64_bits_is_refused(dtype):
    (x,) = _device(X)
    with compat.environment(), pytest.raises(PortError, match="sum is to compute in"):
        x.sum(dtype=dtype)


DTYPES_THAT_ARE_MISSING = {
    "chalf": lambda x: x.chalf(),
    "complex": lambda x: torch.complex(x.half(), x.half()),
    "view_as_complex": lambda x: torch.view_as_complex(x[:, :2].half()),
    "hash_tensor": torch.hash_tensor,
    "softmin": lambda x: torch.nn.functional.softmin(x, 0, dtype=torch.float64),
}


@pytest.mark.parametrize("name", DTYPES_THAT_ARE_MISSING)
def test_a_dtype_that_the_device_lacks_has_an_error_of_its_own(name):
    (x,) = _device(X)
    with compat.environment(), pytest.raises(MissingDtypeError, match="does not have") as caught:
        DTYPES_THAT_ARE_MISSING[name](x)
    assert caught.value.fix


CONVERSIONS = {
    "to": lambda x: x.to(torch.float64),
    "double": lambda x: x.double(),
    "zeros_like": lambda x: torch.zeros_like(x, dtype=torch.float64),
    "arange": lambda x: torch.arange(3, dtype=torch.float64, device=x.device),
    "cdouble": lambda x: x.cdouble(),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_conversion_to_64_bits_warns_with_its_line_and_in_no_other_words(name):
    (x,) = _device(X)
    function = CONVERSIONS[name]
    with compat.environment(), warnings.catch_warnings(record=True) as caught:
        # Any other is an error in tests, unless tpuport filters it.
        warnings.filterwarnings("always", category=narrowing.NarrowingWarning)
        assert function(x).dtype in (torch.float32, torch.complex64)
    # Operators that others are composed of warn of the same line again, which Python shows once.
    line = (narrowing.NarrowingWarning, __file__, function.__code__.co_firstlineno)
    assert {(warning.category, warning.filename, warning.lineno) for warning in caught} == {line}


def test_autocast_may_mix_dtypes():
    x, half = _device(X, HALF)
    env = compat.environment()
    with env, env.override_property(autocast_dtype=torch.bfloat16):
        assert torch.nn.functional.linear(x, half.T).shape == (3, 2)


def test_softmax_in_64_bits_is_refused():
    (x,) = _device(X)
    with compat.environment(), pytest.raises(PortError, match="softmax"):
        torch.nn.functional.softmax(x, -1, dtype=torch.float64)


def test_an_error_of_jax_names_the_operator(monkeypatch):
    def fail(*_):
        raise ValueError("axis")

    (x,) = _device(X)
    monkeypatch.setitem(compat.environment()._ops, torch.ops.aten.sin.default, _operator(fail))
    with compat.environment(), pytest.raises(PortError, match=r"aten\.sin\.default cannot run .*: axis"):
        torch.sin(x)


def test_a_result_of_another_shape_is_refused(monkeypatch):
    (x,) = _device(X)
    monkeypatch.setitem(compat.environment()._ops, torch.ops.aten.sin.default, _operator(lambda x: x[0]))
    with compat.environment(), pytest.raises(PortError, match="other shapes"):
        torch.sin(x)


def test_a_result_of_another_dtype_is_cast(monkeypatch):
    (x,) = _device(X)
    monkeypatch.setitem(
        compat.environment()._ops, torch.ops.aten.sin.default, _operator(lambda x: x.astype("float16"))
    )
    with compat.environment():
        assert torch.sin(x).dtype == torch.float32


def _operator(function):
    from torchax.ops.ops_registry import Operator

    return Operator(torch.ops.aten.sin.default, function, True, False, False, False)


def test_torch_is_asked_once_for_each_kind_of_arguments(monkeypatch):
    asked = []
    ask = expectations._ask
    monkeypatch.setattr(expectations, "_ask", lambda *args: asked.append(args[0]) or ask(*args))
    x, y = _device(torch.randn(3, 17), torch.randn(3, 17))
    with compat.environment():
        torch.sinh(x)
        torch.sinh(y)
    assert asked == [torch.ops.aten.sinh.default]


def test_values_that_a_trace_does_not_know_stay_the_error_of_jax():
    def call(array):
        with compat.environment():
            return compat.as_jax(torch.nonzero(compat.as_torch(array)))

    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jit(call)(compat.to_jax(X))
