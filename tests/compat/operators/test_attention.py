import pytest
import torch
from torch.nn import functional

import tpuport
from tpuport import compat

QUERY, KEY, VALUE = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 6)
SEEN = torch.randint(0, 2, (2, 1, 5, 7)).bool() | (torch.arange(7) == 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"scale": 0.3}, {"scale": 2.0, "is_causal": True}], ids=str
)
def test_without_a_mask(agree, options, dtype):
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    tensors = (tensor.to(dtype) for tensor in (QUERY, KEY, VALUE))
    agree(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, **options),
        *tensors,
        tolerance=tolerance,
    )


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (2, 1, 5, 7), (1, 4, 5, 7), (2, 4, 5, 7)])
def test_with_a_mask(agree, shape):
    seen = SEEN.expand(2, 4, 5, 7)[tuple(slice(n) for n in (1,) * (4 - len(shape)) + shape)].reshape(shape)
    agree(functional.scaled_dot_product_attention, QUERY, KEY, VALUE, seen)
    agree(functional.scaled_dot_product_attention, QUERY, KEY, VALUE, torch.randn(shape))
    agree(
        functional.scaled_dot_product_attention,
        QUERY,
        KEY,
        VALUE,
        torch.zeros(shape).masked_fill(~seen, -torch.inf),
    )


def test_a_query_that_sees_nothing_gets_zeros(agree):
    seen = SEEN.clone()
    seen[1, :, 3] = False
    agree(functional.scaled_dot_product_attention, QUERY, KEY, VALUE, seen)


def test_grouped_heads(agree):
    agree(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        QUERY,
        KEY[:, :2],
        VALUE[:, :2],
    )


def test_fewer_dimensions(agree):
    agree(functional.scaled_dot_product_attention, QUERY[0, 0], KEY[0, 0], VALUE[0, 0])
    agree(functional.scaled_dot_product_attention, QUERY[0], KEY[0], VALUE[0], SEEN[0])


def test_dropout_keeps_the_mean():
    ones = torch.ones(1, 1, 64, 64)
    with compat.environment():
        ported = compat.wrap(compat.to_jax(ones))
        dropped = compat.to_torch(
            compat.as_jax(functional.scaled_dot_product_attention(ported, ported, ported, dropout_p=0.5))
        )
    assert 0.9 < dropped.mean() < 1.1
    assert dropped.std() > 0.01


def test_mask_and_causal_is_refused():
    with compat.environment():
        q, k, v, seen = (compat.wrap(compat.to_jax(tensor)) for tensor in (QUERY, KEY, VALUE, SEEN))
        with pytest.raises(tpuport.PortError, match="not both"):
            functional.scaled_dot_product_attention(q, k, v, seen, is_causal=True)
        with pytest.raises(tpuport.PortError, match="cannot share"):
            functional.scaled_dot_product_attention(q, k[:, :3], v[:, :3], enable_gqa=True)
