"""The attention of stand-ins, against attention written out in float64."""

import math

import pytest
import torch

from tpuport import PortError
from tpuport.gpu import attention_packages, xformers_attention


def written_out(q, k, v, seen=None, scale=None, bias=0.0):
    """[B, Q, H, D], [B, T, K, D] -> [B, Q, H, D] in float64, one head of one sample at a time."""
    q, k, v = (tensor.double() for tensor in (q, k, v))
    out = torch.zeros_like(q)
    group = q.shape[2] // k.shape[2]
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            scores = (
                q[b, :, h] @ k[b, :, h // group].T * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
            )
            scores = scores + bias
            for i in range(q.shape[1]):
                keys = [j for j in range(k.shape[1]) if seen is None or seen(i, j)]
                if keys:
                    weights = torch.softmax(scores[i, keys], dim=-1)
                    out[b, i, h] = weights @ v[b, keys, h // group]
    return out


def tensors(queries=5, keys=7, heads=4, kv_heads=2, width=8):
    generator = torch.Generator().manual_seed(queries * 100 + keys)
    shapes = (2, queries, heads, width), (2, keys, kv_heads, width), (2, keys, kv_heads, width)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def close(actual, expected):
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (7, 5), (6, 6), (1, 9)])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize(
    ("causal", "window"),
    [
        (False, (-1, -1)),
        (True, (-1, -1)),
        (False, (2, 1)),
        (True, (3, 3)),
        (False, (-1, 2)),
        (False, (0, -1)),
    ],
)
def test_flash_attention(queries, keys, scale, causal, window):
    q, k, v = tensors(queries, keys)
    left, right = window[0], 0 if causal else window[1]

    def seen(i, j):
        place = i + keys - queries
        return (left < 0 or j >= place - left) and (right < 0 or j <= place + right)

    actual = attention_packages.flash_attn_func(
        q, k, v, softmax_scale=scale, causal=causal, window_size=window
    )
    assert actual.shape == q.shape
    close(actual, written_out(q, k, v, seen, scale))


def test_packed_forms_and_their_gradients():
    q, k, v = tensors(6, 6, kv_heads=4)
    packed = torch.stack((q, k, v), dim=2).requires_grad_()
    expected = written_out(q, k, v, lambda i, j: j <= i)
    actual = attention_packages.flash_attn_qkvpacked_func(packed, causal=True)
    close(actual, expected)
    close(
        attention_packages.flash_attn_kvpacked_func(q, torch.stack((k, v), dim=2), 0.0, None, True), expected
    )
    actual.sum().backward()
    assert packed.grad.isfinite().all()


def test_queries_that_see_nothing_have_finite_gradients():
    q, k, v = (tensor.requires_grad_() for tensor in tensors(7, 5))
    attention_packages.flash_attn_func(q, k, v, causal=True).sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in (q, k, v))


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 30.0},
        {"alibi_slopes": torch.ones(4)},
        {"return_attn_probs": True},
        {"sinks": torch.ones(4)},
    ],
)
def test_what_has_no_form_is_refused(options):
    with pytest.raises(PortError, match=f"with {next(iter(options))} has no equivalent"):
        attention_packages.flash_attn_func(*tensors(), **options)


def test_xformers():
    q, k, v = tensors(6, 6, kv_heads=4)
    close(xformers_attention.memory_efficient_attention(q, k, v, op=None), written_out(q, k, v))
    causal = xformers_attention.LowerTriangularMask()
    close(
        xformers_attention.memory_efficient_attention(q, k, v, causal, scale=0.5),
        written_out(q, k, v, lambda i, j: j <= i, 0.5),
    )
    bias = torch.randn(6, 6)
    close(
        xformers_attention.memory_efficient_attention(q, k, v, bias.expand(2, 4, 6, 6)),
        written_out(q, k, v, bias=bias),
    )
    flat = xformers_attention.memory_efficient_attention(*(tensor[:, :, 0] for tensor in (q, k, v)))
    close(flat, written_out(*(tensor[:, :, :1] for tensor in (q, k, v)))[:, :, 0])
    with pytest.raises(PortError, match="mask of type str"):
        xformers_attention.memory_efficient_attention(q, k, v, "mask")


def test_sage():
    q, k, v = tensors(6, 6)
    expected = written_out(q, k, v, lambda i, j: j <= i, 0.4)
    close(attention_packages.sageattn(q, k, v, "NHD", is_causal=True, sm_scale=0.4), expected)
    swapped = (tensor.transpose(1, 2) for tensor in (q, k, v))
    close(
        attention_packages.sageattn(*swapped, is_causal=True, sm_scale=0.4, smooth_k=True).transpose(1, 2),
        expected,
    )
    for arguments, options in (
        ((q, k, v, "NDH"), {}),
        (tensors(5, 7), {"tensor_layout": "NHD", "is_causal": True}),
    ):
        with pytest.raises(PortError):
            attention_packages.sageattn(*arguments, **options)


def test_apex_norms():
    x = torch.randn(3, 8)
    close(attention_packages.FusedLayerNorm(8)(x), torch.nn.functional.layer_norm(x.double(), (8,)))
    close(
        attention_packages.FusedRMSNorm(8)(x),
        x.double() / torch.sqrt(x.double().square().mean(-1, keepdim=True) + 1e-5),
    )
