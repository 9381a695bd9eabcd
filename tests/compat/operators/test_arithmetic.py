import jax
import jax.numpy as jnp
import pytest
import torch
from torch.nn import functional

from tpuport import compat

FLOATS = torch.tensor([7.5, -7.5, 3.0, -0.25, 1e30])
INTEGERS = torch.tensor([7, -7, 3, -2, 0])

CASES = {
    "fmod": lambda x, i: torch.fmod(x, 2.5),
    "fmod of tensors": lambda x, i: torch.fmod(x, x.flip(0)),
    "fmod by infinity": lambda x, i: torch.fmod(x, torch.inf),
    "fmod of integers": lambda x, i: torch.fmod(i, 3),
    "fmod in place": lambda x, i: x.clone().fmod_(2.5),
    "hardtanh": lambda x, i: functional.hardtanh(x, -2.0, 2.0),
    "hardtanh of integers": lambda x, i: functional.hardtanh(i),
    "relu6 of integers": lambda x, i: functional.relu6(i),
    "integer to a negative power": lambda x, i: torch.pow(torch.tensor([1, -1, -1, 2, 5]).to(i.device), i.clamp(max=0)),
    "number to integer powers": lambda x, i: 2 ** i,
    "addbmm": lambda x, i: torch.addbmm(x, x[None, :, None], x[None, None], beta=0.5, alpha=2),
    "addbmm without the first": lambda x, i: torch.addbmm(x * torch.nan, x[None, :, None], x[None, None], beta=0),
    "addbmm of integers": lambda x, i: torch.addbmm(i, i[None, :, None], i[None, None], beta=0.5, alpha=2.5),
    "angle": lambda x, i: [x.angle(), torch.angle(i), torch.angle(torch.complex(x, x[0] + 0 * x))],
    "complex": lambda x, i: torch.view_as_real(torch.complex(x, x[0])),
}  # fmt: skip

STACKS = {
    "two leading dimensions": ((2, 3, 4, 5), (2, 3, 5, 6)),
    "broadcast": ((2, 1, 4, 5), (3, 5, 6)),
    "one matrix": ((2, 3, 4, 5), (5, 6)),
    "one matrix on the left": ((4, 5), (2, 3, 5, 6)),
    "a vector": ((2, 3, 4, 5), (5,)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shapes", STACKS.values(), ids=STACKS)
def test_stacks_of_matrices(agree, shapes, dtype):
    x, y = (torch.randn(shape).to(dtype) for shape in shapes)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    agree(lambda x, y: [x @ y, x.matmul(y), torch.matmul(x, y)], x, y, tolerance=tolerance)


def test_leading_dimensions_of_a_product_are_not_joined():
    def product(x, y):
        return compat.as_jax(compat.wrap(x) @ compat.wrap(y))

    with compat.environment():
        program = jax.make_jaxpr(product)(jnp.ones((2, 3, 4, 5)), jnp.ones((2, 3, 5, 6)))
    assert "dimension_numbers=(([3], [2]), ([0, 1], [0, 1]))" in str(program)


@pytest.mark.parametrize("shapes", [((2, 3, 4, 5), (2, 3, 4, 5)), ((2, 3, 4, 5), (2, 2, 5, 4))])
def test_stacks_that_do_not_fit_are_refused(shapes):
    x, y = (compat.wrap(compat.to_jax(torch.randn(shape))) for shape in shapes)
    with compat.environment(), pytest.raises(RuntimeError):
        torch.matmul(x, y)


@pytest.mark.parametrize("name", CASES)
def test_agrees(agree, name):
    agree(CASES[name], FLOATS, INTEGERS, jit="negative" not in name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fmod_in_half_precision(agree, dtype):
    agree(
        lambda x, y: torch.fmod(x, y), torch.randn(50).to(dtype) * 9, torch.randn(50).to(dtype), tolerance=0
    )


def test_allclose_is_a_bool():
    x = compat.wrap(compat.to_jax(FLOATS))
    with compat.environment():
        assert torch.allclose(x, x) is True
        assert x.allclose(x + 1) is False


def test_complex_of_integers_is_refused():
    x, i = compat.wrap(compat.to_jax(FLOATS)), compat.wrap(compat.to_jax(INTEGERS))
    with compat.environment(), pytest.raises(RuntimeError, match="floating"):
        torch.complex(x, i)


def test_fmod_by_a_number_that_is_rounded_first(agree):
    agree(lambda x: torch.fmod(x, 0.7), torch.randn(50).mul(9).bfloat16(), tolerance=0.0)


@pytest.mark.parametrize("shape", [(), (1,), (2, 4), (1, 4)], ids=str)
def test_sum_of_products_in_place_may_change_the_shape(agree, shape):
    def add(x, left, right):
        y = x.clone()
        result = y.addbmm_(left, right, beta=2, alpha=0.5)
        return [result, y]

    agree(add, torch.randn(shape), torch.randn(3, 2, 5), torch.randn(3, 5, 4))


@pytest.mark.parametrize("shape", [(3, 1), (1, 4), (4,)])
def test_lerp_by_weights_that_are_broadcast(agree, shape):
    # torch's own composition gives such results other strides, by a primitive.
    x, y = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    agree(lambda x, y, weight: x.lerp(y, weight), x, y, torch.rand(shape))
    agree(lambda x, y, weight: x.transpose(1, 2).lerp(y.transpose(1, 2), weight), x, y, torch.rand(4, 1))


@pytest.mark.parametrize("name", ["__and__", "__or__", "__xor__"])
def test_operators_of_bits(agree, name):
    operator = getattr(torch.ops.aten, name)
    x = torch.tensor([2, 1, 0, 7, -3])
    agree(lambda x: [operator.Scalar(x, 2), operator.Tensor(x, x + 1), operator.Scalar(x > 1, True)], x)


@pytest.mark.filterwarnings("ignore:float64 becomes float32")
def test_float_power_asks_the_whole_exponent_whether_it_is_odd(agree):
    odd = 2**24 + 1
    x, exponents = torch.tensor([-1.0, -1.0, -2.0, -0.0, 3.0]), torch.tensor([odd, odd + 1, -3, -1, 2])
    agree(torch.float_power, x, exponents)
    agree(
        lambda x: [x.float_power(odd), x.float_power(float(odd)), torch.float_power(-1, x.long() * 0 + odd)],
        x,
    )
    agree(lambda x: torch.float_power(x, 0.5), torch.tensor([4.0, -torch.inf]), eager=False)
    agree(lambda x, y: torch.float_power(x.long(), y), x, exponents, eager=False)
