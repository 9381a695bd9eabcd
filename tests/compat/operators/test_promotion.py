import itertools

import pytest
import torch

import tpuport

A, B = torch.randn(4, 6), torch.randn(6)
INTEGERS = torch.arange(24).reshape(4, 6) - 5
MASK = A > 0
SCALAR = torch.tensor(2.5)

SAME_DTYPE = {
    "bfloat16 by a float32 scalar tensor": lambda a, b, i, m, s: a.bfloat16() * s,
    "bfloat16 by a tensor": lambda a, b, i, m, s: a.bfloat16() * b,
    "half with bfloat16": lambda a, b, i, m, s: a.half() + b.bfloat16(),
    "integers by a scalar tensor": lambda a, b, i, m, s: i * s,
    "integers by an integer scalar tensor": lambda a, b, i, m, s: i.to(torch.int16) + i[0, 0],
    "integers by a number": lambda a, b, i, m, s: i * 2.5,
    "integers divided": lambda a, b, i, m, s: i / 2,
    "integers plus an integer": lambda a, b, i, m, s: i.to(torch.int8) + 3,
    "complex number": lambda a, b, i, m, s: a * 2j,
    "bool plus bool": lambda a, b, i, m, s: m + m,
    "bool times number": lambda a, b, i, m, s: m * 2,
    "bool times float": lambda a, b, i, m, s: m * a,
    "add with a factor": lambda a, b, i, m, s: torch.add(a, b, alpha=0.3),
    "subtract with a factor": lambda a, b, i, m, s: torch.sub(i, i, alpha=2),
    "number minus": lambda a, b, i, m, s: 1 - m.long(),
    "integer power": lambda a, b, i, m, s: i**2,
    "square": lambda a, b, i, m, s: a.bfloat16() ** 2,
    "root of integers": lambda a, b, i, m, s: i.abs() ** 0.5,
    "number to a power": lambda a, b, i, m, s: 2.0 ** i.clamp(max=5),
    "power of tensors": lambda a, b, i, m, s: a.abs() ** b,
    "maximum": lambda a, b, i, m, s: torch.maximum(a.bfloat16(), s),
    "minimum": lambda a, b, i, m, s: torch.minimum(i, s.long()),
    "where scalar tensor": lambda a, b, i, m, s: torch.where(m, a.bfloat16(), s),
    "where number": lambda a, b, i, m, s: torch.where(m, a.bfloat16(), -1e9),
    "where numbers": lambda a, b, i, m, s: torch.where(m, 1, 0),
    "where tensors": lambda a, b, i, m, s: torch.where(m, i, b),
    "in place": lambda a, b, i, m, s: a.bfloat16().add_(b),
    "in place in a view": lambda a, b, i, m, s: (lambda x: (x[1:3].mul_(s), x))(a.bfloat16()),
}


@pytest.mark.parametrize("name", SAME_DTYPE)
def test_dtype_and_values(agree, name):
    agree(SAME_DTYPE[name], A, B, INTEGERS, MASK, SCALAR, tolerance=1e-5 if "float16" not in name else 1e-2)


@pytest.mark.parametrize("number", [0.0883883, 3.1415926, 1e-3])
def test_half_precision_is_scaled_before_it_is_rounded(agree, number):
    exact = (A.bfloat16().float() * number).bfloat16()
    assert torch.equal(exact, A.bfloat16() * number)
    agree(lambda a: a * number, A.bfloat16(), tolerance=0)
    agree(lambda a: a / number, A.bfloat16(), tolerance=0)
    agree(lambda a, s: a * s, A.bfloat16(), torch.tensor(number), tolerance=0)


# With the scalar tensor on the host, where torch computes with a GPU's tensor too.
BESIDE_HOST = {
    "maximum": lambda x, s: torch.maximum(s, x),
    "minimum": lambda x, s: torch.minimum(x, s),
    "where": lambda x, s: torch.where(x > 1, s, x),
    "clamp": lambda x, s: torch.clamp(x, min=s),
    "atan2": lambda x, s: torch.atan2(s, x),
    "copysign": lambda x, s: torch.copysign(x, s),
    "sign of others": lambda x, s: torch.copysign(s, x),
    "lerp": lambda x, s: torch.lerp(x.float(), x + 1.0, s.float()) if x.dtype != torch.bfloat16 else x,
    "isclose": lambda x, s: torch.isclose(x, s.to(x.dtype)),
    "addcmul": lambda x, s: torch.addcmul(x, x, s.to(x.dtype)),
    "masked_fill": lambda x, s: x.masked_fill(x > 1, s.to(x.dtype)),
}


@pytest.mark.parametrize("jit", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("name", BESIDE_HOST)
def test_a_scalar_tensor_on_the_host_is_an_operand(name, jit):
    function = BESIDE_HOST[name]
    floats, integers = torch.tensor([-1.0, 2.0]), torch.tensor([-1, 3])
    cases = list(
        itertools.product((floats, floats.bfloat16(), integers), (torch.tensor(-2.0), torch.tensor(2)))
    )

    def results(*tensors):
        return [function(x, scalar) for x, (_, scalar) in zip(tensors, cases, strict=True)]

    on_device = tpuport.compile(results) if jit else results
    expected = results(*(x for x, _ in cases))
    for result, reference in zip(on_device(*(x.to("jax") for x, _ in cases)), expected, strict=True):
        assert result.dtype == reference.dtype
        tolerance = 1e-2 if reference.dtype == torch.bfloat16 else 1e-6
        torch.testing.assert_close(result.cpu(), reference.to(result.dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_high_powers_keep_their_digits(agree, dtype):
    x = torch.tensor([0.99, 1.01, -1.01, 0.9], dtype=dtype)
    tolerance = 2e-6 if dtype == torch.float32 else 1e-2
    agree(lambda x: [x**17, x**300, x**1001, x**-101], x, tolerance=tolerance)


def test_roots_of_infinity(agree):
    x = torch.tensor([4.0, 0.0, -0.0, torch.inf, -torch.inf])
    agree(lambda x: [x**0.5, x**-0.5, x.bfloat16() ** 0.5, x.half() ** 0.5], x)


def test_integers_to_a_negative_power_are_torchs_error():
    with pytest.raises(RuntimeError, match="Integers to negative integer powers"):
        torch.tensor([2, 3], device="jax").pow(-1)
    with pytest.raises(RuntimeError, match="without overflow"):
        torch.ones(2, dtype=torch.float16, device="jax").pow(100_000)
