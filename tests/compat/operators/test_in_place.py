import pytest
import torch

from tpuport.compat.operators.in_place import _NAMES

X = torch.linspace(0.1, 0.9, 24).reshape(2, 3, 4)


@pytest.mark.parametrize("name", _NAMES)
def test_tensor_and_view(agree, name):
    def change(x):
        method = getattr(torch.Tensor, f"{name}_", None) or getattr(torch.ops.aten, f"{name}_")
        whole, part = x.clone(), x.clone()
        returned = method(whole)
        method(part[:, 1:])
        return whole, part, returned

    agree(change, X, tolerance=1e-4, jit=False)


def test_traced_and_in_half_precision(agree):
    agree(lambda x: x.clone().neg_().exp_().round_(), X)
    agree(lambda x: x.clone().reciprocal_(), X.bfloat16(), tolerance=1e-2)
