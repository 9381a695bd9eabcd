import pytest
import torch

import tpuport
from tpuport import compat

X = torch.arange(24.0).reshape(2, 3, 4) - 7

CASES = {
    "flatten": lambda x: x.flatten(),
    "flatten from": lambda x: x.flatten(1),
    "flatten from the end": lambda x: x.flatten(-2),
    "flatten to": lambda x: x.flatten(0, 1),
    "flatten to from the end": lambda x: x.flatten(0, -2),
    "flatten one": lambda x: x.flatten(1, 1),
    "flatten the last": lambda x: x.flatten(2, 2),
    "flatten a scalar": lambda x: x[0, 0, 0].flatten(),
    "flatten a view": lambda x: x[:, 1:].flatten(1, 2),
    "bits as integers": lambda x: x.view(torch.int32),
    "bits as narrower": lambda x: x.view(torch.bfloat16),
    "bits as wider": lambda x: x.bfloat16().view(torch.float32),
    "unsqueeze in place": lambda x: x.clone().unsqueeze_(1),
    "unsqueeze in place at the end": lambda x: x.clone().unsqueeze_(-1),
    "transpose in place": lambda x: x.clone().transpose_(0, -1),
    "squeeze in place": lambda x: x[:, :1].clone().squeeze_(1),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees(agree, name):
    agree(CASES[name], X, tolerance=0)


def test_take_along_a_dimension(agree):
    indices = torch.randint(0, 4, (2, 3, 5))
    agree(lambda x, i: torch.take_along_dim(x, i, dim=-1), X, indices)
    agree(lambda x, i: x.take_along_dim(i[:1], 2), X, indices)
    agree(lambda x, i: torch.take_along_dim(x, i), X, indices)
    agree(lambda x, i: torch.take_along_dim(x, i[..., :1], dim=1), X, indices.clamp(max=2))
    agree(lambda x, i: torch.take_along_dim(x[:1], i, dim=-1), X, indices)


REPEATS = {
    "flat": lambda x: torch.repeat_interleave(x, 2),
    "method": lambda x: x.repeat_interleave(repeats=3, dim=0, output_size=6),
    "from the end": lambda x: x.repeat_interleave(2, -1),
    "function": lambda x: torch.repeat_interleave(x, 2, dim=1, output_size=6),
    "a view": lambda x: x[:, 1:].repeat_interleave(2, dim=1),
    "each its own": lambda x: torch.repeat_interleave(
        x, torch.tensor([2, 1], device=x.device), dim=0, output_size=3
    ),
}


@pytest.mark.parametrize("name", REPEATS)
def test_repeats(agree, name):
    agree(REPEATS[name], X, tolerance=0)


def test_flatten_refuses_what_torch_refuses():
    with compat.environment():
        ported = compat.wrap(compat.to_jax(X))
        with pytest.raises(IndexError):
            ported.flatten(3)
        with pytest.raises(RuntimeError):
            ported.flatten(2, 1)


def test_type_as_leaves_the_tensor_alone(agree):
    def convert(x, y):
        converted = x.type_as(y)
        return x, converted, converted.type_as(x), x.type_as(x), x[0].type_as(y)

    agree(convert, X, torch.zeros(1, dtype=torch.bfloat16))


def test_bits_wider_than_jax_has_are_refused():
    with compat.environment(), pytest.raises(tpuport.PortError, match="int64"):
        compat.wrap(compat.to_jax(X)).view(torch.int64)


def test_shape_by_name(agree):
    agree(
        lambda x: [x.reshape(shape=(3, 2)), x.view(size=(6,)), torch.reshape(x, shape=(-1,))],
        torch.arange(6.0),
    )
