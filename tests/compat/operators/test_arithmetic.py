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
