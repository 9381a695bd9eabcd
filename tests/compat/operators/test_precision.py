import pytest
import torch
from torch.nn import functional

FUNCTIONS = {
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu by tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "softmax": lambda x: functional.softmax(x, dim=-1),
    "softmax of another dimension": lambda x: functional.softmax(x, dim=0),
    "softmax in float32": lambda x: functional.softmax(x, dim=-1, dtype=torch.float32),
    "log softmax": lambda x: functional.log_softmax(x, dim=-1),
    "log softmax in float32": lambda x: functional.log_softmax(x, dim=-1, dtype=torch.float32),
    "layer norm": lambda x: functional.layer_norm(x, (64,)),
    "layer norm with weights": lambda x: functional.layer_norm(x, (64,), x[0], x[1], 1e-3),
    "layer norm of two dimensions": lambda x: functional.layer_norm(x.reshape(4, 8, 16), (8, 16)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32(agree, name):
    agree(FUNCTIONS[name], torch.randn(8, 64) * 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_half_precision_is_rounded_once(agree, name, dtype):
    """Within one unit in the last place, where rounding on the way would make several."""
    agree(FUNCTIONS[name], (torch.randn(8, 64) * 3).to(dtype), tolerance=torch.finfo(dtype).eps)


def test_integers(agree):
    agree(torch.sigmoid, torch.arange(-3, 4))
