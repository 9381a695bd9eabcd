"""torch.einsum against torch: every form of its arguments, and which results are views."""

import pytest
import torch

from tpuport import compat

X, Y, Z = torch.randn(2, 3, 4), torch.randn(4, 5), torch.randn(5, 2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("bij,jk->bik", X, Y),
        ("bij,jk,kb->i", X, Y, Z),
        ("bij, jk, kb", [X, Y, Z]),
        ("...j,jk->...k", X, Y),
        ("bij->bj", X),
        ("bij", X),
        ("ii->i", torch.randn(3, 3)),
        ("iii->i", torch.randn(3, 3, 3)),
        ("...ii->...i", torch.randn(2, 3, 3)),
        ("...->...", X),
        ("ii", torch.randn(3, 3)),
        (X, [0, 1, 2], Y, [2, 3], [0, 1, 3]),
        (X, [..., 2], Y, [2, 3], [..., 3]),
        (X, [5, 1, 2], Y, [2, 3]),
    ],
)
def test_equals_torch(agree, arguments):
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]

    def contract(*tensors):
        remaining = iter(tensors)
        return torch.einsum(*(next(remaining) if isinstance(a, torch.Tensor) else a for a in arguments))

    if isinstance(arguments[-1], list) and isinstance(arguments[-1][0], torch.Tensor):
        tensors, contract = arguments[-1], lambda *tensors: torch.einsum(arguments[0], list(tensors))
    agree(contract, *tensors)


def test_ordered_dimensions_are_a_view(agree):
    def function(x):
        x = x.clone()
        torch.einsum("bij->jbi", x).add_(1)
        torch.einsum("b...->b...", x).mul_(2)
        torch.einsum("...ij->...ji", x)[0] -= 1
        torch.einsum("bii->ib", x[:, :, :3]).mul_(3)
        return x

    agree(function, X)


def test_a_diagonal_of_other_sizes_is_refused():
    with compat.environment(), pytest.raises(RuntimeError, match="sizes"):
        torch.einsum("ii->i", compat.wrap(compat.to_jax(X[0])))
