"""Mixed dtypes: what torch refuses on a CPU is refused on the device, and what it promotes has torch's dtype."""

import pytest
import torch
from torch.nn import functional

from tpuport import compat

HALF, FULL = torch.bfloat16, torch.float32


def _of(shape, dtype=FULL):
    return torch.rand(shape).to(dtype)


def _attention(*dtypes):
    return [_of((1, 2, 4, 8), dtype) for dtype in dtypes]


def _write_rows(x, values):
    x = x.clone()
    x[torch.tensor([0, 1], device=x.device)] = values
    return x


def _layer_norm(x, weight, bias):
    return functional.layer_norm(x, (4,), weight, bias)


def _group_norm(x, weight, bias):
    return functional.group_norm(x, 2, weight, bias)


def _batch_norm(x, weight, bias, mean, variance):
    return functional.batch_norm(x, mean, variance, weight, bias)


def _masked_attention(query, key, value, mask):
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def _log_softmax(x):
    return functional.log_softmax(x, -1)


REFUSED = {
    "query": (functional.scaled_dot_product_attention, _attention(FULL, HALF, HALF)),
    "value": (functional.scaled_dot_product_attention, _attention(HALF, HALF, FULL)),
    "mask": (_masked_attention, [*_attention(FULL, FULL, FULL), _of((4, 4), HALF)]),
    "integers": (functional.scaled_dot_product_attention, _attention(*[torch.int64] * 3)),
    "convolution": (functional.conv2d, [_of((1, 2, 8, 8)), _of((3, 2, 3, 3), HALF)]),
    "bias": (functional.conv1d, [_of((1, 2, 8), HALF), _of((3, 2, 3), HALF), _of(3)]),
    "baddbmm": (torch.baddbmm, [_of((2, 2, 2)), _of((2, 2, 3), HALF), _of((2, 3, 2), HALF)]),
    "einsum": (lambda x, y: torch.einsum("ij,jk", x, y), [_of((2, 3)), _of((3, 2), HALF)]),
    "layer norm of float32": (_layer_norm, [_of((2, 4)), _of(4, HALF), _of(4, HALF)]),
    "layer norm's bias": (_layer_norm, [_of((2, 4), HALF), _of(4, HALF), _of(4)]),
    "group norm of float32": (_group_norm, [_of((2, 4, 3)), _of(4, HALF), _of(4, HALF)]),
    "batch norm's statistics": (
        _batch_norm,
        [_of((2, 4, 3), HALF), _of(4, HALF), _of(4, HALF), _of(4), _of(4)],
    ),
    "rows": (_write_rows, [_of((3, 2), HALF), _of((2, 2))]),
    "cdist": (torch.cdist, [_of((2, 2)), _of((2, 2), HALF)]),
    "loss": (functional.binary_cross_entropy, [_of(3, HALF), _of(3)]),
    "solve": (torch.linalg.solve, [torch.eye(3), _of((3, 2), HALF)]),
    "cross": (torch.linalg.cross, [_of(3, HALF), _of(3)]),
    "product of bools": (torch.matmul, [torch.ones(3, 3).bool(), torch.ones(3, 3).bool()]),
    "heaviside": (torch.heaviside, [_of(3, HALF), _of(3)]),
    "lerp of integers": (torch.lerp, [torch.ones(3).long()] * 3),
    "hypot of integers": (torch.hypot, [torch.ones(3).long()] * 2),
    "one hot": (functional.one_hot, [torch.ones(3).int()]),
    "classes": (functional.cross_entropy, [_of((2, 3)), torch.ones(2).int()]),
    "classes of pixels": (functional.nll_loss, [_of((1, 3, 2, 2)), torch.ones(1, 2, 2).int()]),
    "softmax of integers": (_log_softmax, [torch.ones(3).long()]),
}
PROMOTED = {
    "mask of float32": (_masked_attention, [*_attention(HALF, HALF, HALF), _of((4, 4))]),
    "layer norm": (_layer_norm, [_of((2, 4), HALF), _of(4), _of(4)]),
    "group norm": (_group_norm, [_of((2, 4, 3), HALF), _of(4), _of(4)]),
    "outer product": (lambda x, y: torch.einsum("i, j -> i j", x, y), [_of(2), _of(3, HALF)]),
    "addr": (torch.addr, [_of((2, 3)), _of(2, HALF), _of(3, HALF)]),
    "cat": (lambda *parts: torch.cat(parts), [_of(3), _of(3, HALF)]),
    "where": (lambda x, y: torch.where(x > 0.5, x, y), [_of(3, HALF), _of(3)]),
    "softmax": (lambda x: functional.softmax(x, -1, dtype=FULL), [torch.ones(3).long()]),
}


@pytest.mark.parametrize(("function", "tensors"), REFUSED.values(), ids=REFUSED)
def test_what_torch_refuses_is_refused(function, tensors):
    with pytest.raises(RuntimeError):
        function(*tensors)
    device = list(map(compat.to_device, tensors))
    with compat.environment(), pytest.raises(Exception, match=r"dtype|not implemented|same"):
        function(*device)


@pytest.mark.parametrize(("function", "tensors"), PROMOTED.values(), ids=PROMOTED)
def test_what_torch_promotes_is_promoted(agree, function, tensors):
    agree(function, *tensors, tolerance=1e-2, jit=False)


def test_a_value_for_a_mask_is_cast(agree):
    def fill(x, value):
        x = x.clone()
        x[x > 0.5] = value
        return x

    agree(fill, _of((3, 2), HALF), torch.tensor(1.5))


def test_autocast_casts_itself():
    query, *others = compat.as_torch([compat.to_jax(part) for part in _attention(FULL, HALF, HALF)])
    with compat.environment() as environment, environment.override_property(autocast_dtype=HALF):
        functional.scaled_dot_product_attention(query, *others)
