"""Attention over sequences laid end to end, against each sequence alone: in float64 as flash_attn documents it, and
by torch's own attention."""

import importlib
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import tpuport
from tpuport import PortError, attention
from tpuport.gpu import attention_packages, bert_padding, xformers_attention

# Lengths of queries and of keys: more of either, none of either, and equal ones.
UNEQUAL = ([3, 5, 0, 2, 4], [6, 2, 3, 0, 4])
EQUAL = ([3, 1, 0, 5], [3, 1, 0, 5])


@pytest.fixture
def enabled():
    tpuport.enable()
    attention.explain(clear=True)
    yield
    tpuport.disable()


def cumulative(lengths, before=0):
    return torch.tensor([before, *itertools.accumulate(lengths)], dtype=torch.int32)


def rows(lengths, heads, padding, seed, width=8):
    size = sum(lengths) + padding
    return torch.randn(size, heads, width, generator=torch.Generator().manual_seed(seed))


def tensors(lengths, padding=0, heads=4, kv_heads=2):
    q_lengths, k_lengths = lengths
    q = rows(q_lengths, heads, padding, 1)
    return q, rows(k_lengths, kv_heads, padding, 2), rows(k_lengths, kv_heads, padding, 3)


def documented(q, k, v, lengths, causal=False, window=(-1, -1), scale=None, room=None, from_end=True):
    """Each query of each sequence alone, in float64: query i of a sequence with sq queries and sk keys sees keys
    from i + sk - sq - left to i + sk - sq + right."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    q, k, v = (tensor.detach().double() for tensor in (q, k, v))
    starts = [cumulative(lengths[0]).tolist(), cumulative(room or lengths[1]).tolist()]
    for q_start, k_start, queries, keys in zip(starts[0], starts[1], *lengths, strict=False):
        for i in range(queries):
            at = i + (keys - queries if from_end else 0)
            first = 0 if window[0] < 0 else max(0, at - window[0])
            last = keys - 1 if window[1] < 0 else min(keys - 1, at + window[1])
            seen = slice(k_start + first, k_start + (min(last, at) if causal else last) + 1)
            if seen.stop <= seen.start:
                continue
            for head in range(q.shape[1]):
                group = head * k.shape[1] // q.shape[1]
                scores = (
                    k[seen, group] @ q[q_start + i, head] * (q.shape[2] ** -0.5 if scale is None else scale)
                )
                out[q_start + i, head] = scores.softmax(0) @ v[seen, group]
    return out


def close(actual, expected):
    torch.testing.assert_close(actual.detach().cpu().double(), expected.double(), rtol=1e-5, atol=1e-5)


LENGTHS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4).filter(
    lambda pairs: all(sum(lengths) for lengths in zip(*pairs, strict=True))
)
WINDOWS = st.tuples(st.integers(-1, 3), st.integers(-1, 3))


@settings(max_examples=60, deadline=None)
@given(LENGTHS, WINDOWS, st.booleans(), st.integers(0, 3), st.sampled_from([None, 0.3]))
def test_any_sequences_and_windows(pairs, window, causal, padding, scale):
    lengths = tuple(map(list, zip(*pairs, strict=True)))
    q, k, v = tensors(lengths, padding)
    bounds = [cumulative(each) for each in lengths]
    actual = attention_packages.flash_attn_varlen_func(
        q, k, v, *bounds, 1, 1, 0.0, scale, causal, window, deterministic=True
    )
    close(actual, documented(q, k, v, lengths, causal, window, scale))


@pytest.mark.parametrize("causal", [False, True])
def test_each_sequence_is_as_torch_alone_computes_it(causal):
    qkv = rows(EQUAL[0], 3 * 4, 0, 4).unflatten(1, (3, 4))
    bounds = cumulative(EQUAL[0])
    actual = attention_packages.flash_attn_varlen_qkvpacked_func(qkv, bounds, max(EQUAL[0]), causal=causal)
    q, k, v = qkv.unbind(1)
    kv = torch.stack((k, v), 1)
    close(
        attention_packages.flash_attn_varlen_kvpacked_func(
            q, kv, bounds, bounds.clone(), 5, 5, causal=causal
        ),
        actual,
    )
    for start, end in itertools.pairwise(bounds.tolist()):
        parts = (tensor[start:end].transpose(0, 1) for tensor in (q, k, v))
        alone = functional.scaled_dot_product_attention(*parts, is_causal=causal)
        close(actual[start:end], alone.transpose(0, 1))


@pytest.mark.parametrize("lengths", [EQUAL, UNEQUAL])
def test_padding_of_nan_changes_nothing_and_gradients_are_finite(lengths):
    q, k, v = tensors(lengths, 3)
    with torch.no_grad():
        q[-3:] = k[-3:] = v[-3:] = torch.nan
    expected = documented(q, k, v, lengths, causal=True)
    operands = [tensor.requires_grad_() for tensor in (q, k, v)]
    bounds = [cumulative(each) for each in lengths]
    if lengths is EQUAL:
        bounds[1] = bounds[0]
    out = attention_packages.flash_attn_varlen_func(*operands, *bounds, 9, 9, causal=True)
    close(out, expected)
    out.sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in operands)


def run_on_device(arguments, **options):
    """In a program that knows no lengths, for several of which it is compiled once."""
    program = tpuport.compile(
        lambda *given: attention_packages.flash_attn_varlen_func(*given, 1, 1, **options)
    )
    outs = [program(*given) for given in arguments]
    [call] = attention.explain(clear=True)
    return outs, call


@pytest.mark.parametrize(
    ("options", "mask"),
    [
        ({}, "segments"),
        ({"causal": True}, "causal, segments"),
        ({"causal": True, "window_size": (2, 0)}, "window 3, segments"),
    ],
)
@pytest.mark.parametrize("shared", [True, False])
def test_a_program_knows_the_mask_and_not_the_lengths(enabled, options, mask, shared):
    both = (EQUAL, ([2, 7, 0, 0], [2, 7, 0, 0])) if shared else (UNEQUAL, ([1, 4, 4, 3, 2], [4, 4, 1, 3, 3]))
    expected, arguments = [], []
    for lengths in both:
        q, k, v = tensors(lengths, 2)
        expected.append(
            documented(q, k, v, lengths, options.get("causal"), options.get("window_size", (-1, -1)))
        )
        bounds = [cumulative(each) for each in lengths]
        if shared:
            bounds[1] = bounds[0]
        arguments.append((q, k, v, *bounds))
    outs, call = run_on_device(arguments, **options)
    assert call.mask == mask
    for out, right in zip(outs, expected, strict=True):
        close(out, right)


@pytest.mark.parametrize("shared", [True, False])
def test_long_sequences_have_the_fused_kernel(enabled, shared):
    q, k, v = (rows([500, 500], 1, 24, seed, width=32) for seed in range(3))
    bounds = cumulative([500, 500])
    arguments = q, k, v, bounds, bounds if shared else bounds.clone()
    [out], call = run_on_device([arguments], causal=True)
    assert (call.implementation, call.mask) == ("flash", "causal, segments")
    # Sequences whose places may differ get room for both.
    assert call.query[2] == (1024 if shared else 2048)
    assert (out[1000:] == 0).all()
    for start, end in ((0, 500), (500, 1000)):
        parts = (tensor[start:end].transpose(0, 1) for tensor in (q, k, v))
        close(out[start:end], functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(0, 1))


@pytest.mark.parametrize("lengths", [EQUAL, UNEQUAL])
def test_gradients_of_a_program(enabled, lengths):
    from torchax import interop

    operands = tensors(lengths, 3)
    with torch.no_grad():
        for tensor in operands:
            tensor[-3:] = torch.nan
    bounds = [cumulative(each) for each in lengths]
    if lengths is EQUAL:
        bounds[1] = bounds[0]

    def loss(operands, *bounds):
        return attention_packages.flash_attn_varlen_func(*operands, *bounds, 1, 1, causal=True).square().sum()

    leaves = [tensor.double().requires_grad_() for tensor in operands]
    loss(leaves, *bounds).backward()
    _, gradients = tpuport.compile(interop.jax_value_and_grad(loss))(operands, *bounds)
    for gradient, leaf in zip(gradients, leaves, strict=True):
        torch.testing.assert_close(gradient.cpu().double(), leaf.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 30.0},
        {"alibi_slopes": torch.ones(4)},
        {"return_attn_probs": True},
        {"block_table": torch.zeros(2, 2)},
    ],
)
def test_what_has_no_form_is_refused(options):
    bounds = cumulative(EQUAL[0])
    with pytest.raises(PortError, match=f"with {next(iter(options))} has no equivalent"):
        attention_packages.flash_attn_varlen_func(*tensors(EQUAL), bounds, bounds, 5, 5, **options)
    with pytest.raises(PortError, match="the same sequences"):
        attention_packages.flash_attn_varlen_func(*tensors(EQUAL), bounds, bounds[1:], 5, 5)


# --- padding taken out and put back ---

KEPT = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 1, 1]])


def test_padding_is_taken_out_and_put_back(enabled):
    x = torch.randn(3, 5, 2, 8, generator=torch.Generator().manual_seed(0))
    unused = torch.zeros_like(KEPT)
    unused[1, 4] = 1
    tokens = (KEPT + unused).bool()

    def run(x, kept, unused):
        rows, indices, bounds, longest, used = bert_padding.unpad_input(x, kept, unused)
        back = bert_padding.pad_input(rows, indices, *x.shape[:2])
        out = attention_packages.flash_attn_varlen_func(rows, rows, rows, bounds, bounds, longest, longest)
        again = bert_padding.index_first_axis(x.flatten(0, 1), indices)
        return rows, again, bounds, used, back, bert_padding.pad_input(out, indices, *x.shape[:2])

    for rows, again, bounds, used, back, out in (
        run(x, KEPT, unused), run(x, KEPT.bool(), unused.bool()), tpuport.compile(run)(x, KEPT, unused)
    ):  # fmt: skip
        assert torch.equal(rows[:7].cpu(), x[tokens])
        assert torch.equal(rows.cpu(), again.cpu())
        assert (bounds.tolist(), used.tolist()) == ([0, 3, 4, 7], [3, 0, 3])
        assert torch.equal(back.cpu(), x * tokens[..., None, None])
        for row, real, mine in zip(x, tokens, out, strict=True):
            heads = row[real].transpose(0, 1)
            alone = functional.scaled_dot_product_attention(heads, heads, heads).transpose(0, 1)
            close(mine[real], alone)
            assert (mine[~real] == 0).all()


def test_places_of_ones_own_are_put_back():
    values = torch.randn(3, 2)
    back = bert_padding.pad_input(values, torch.tensor([4, 0, 3]), 2, 3)
    expected = torch.zeros(6, 2)
    expected[[4, 0, 3]] = values
    assert torch.equal(back, expected.reshape(2, 3, 2))


# --- xformers ---


@pytest.mark.parametrize(
    ("name", "lengths", "options"),
    [
        ("BlockDiagonalMask", UNEQUAL, {}),
        ("BlockDiagonalCausalMask", EQUAL, {"causal": True}),
        ("BlockDiagonalCausalMask", UNEQUAL, {"causal": True, "from_end": False}),
        ("BlockDiagonalCausalFromBottomRightMask", UNEQUAL, {"causal": True}),
        ("BlockDiagonalPaddedKeysMask", UNEQUAL, {}),
        ("BlockDiagonalCausalWithOffsetPaddedKeysMask", UNEQUAL, {"causal": True}),
    ],
)
def test_masks_of_xformers(name, lengths, options):
    mask_class = getattr(xformers_attention, name)
    room = [7] * len(lengths[1]) if "Padded" in name else lengths[1]
    q, k, v = tensors((lengths[0], room), heads=2)
    mask = mask_class.from_seqlens(lengths[0], *([7] if "Padded" in name else []), lengths[1])
    actual = xformers_attention.memory_efficient_attention(q[None], k[None], v[None], mask, scale=0.3)
    close(actual[0], documented(q, k, v, lengths, scale=0.3, room=room, **options))
    remade = {"make_causal": False, "make_causal_from_bottomright": True}
    for method, from_end in remade.items():
        causal = getattr(mask, method)()
        actual = xformers_attention.memory_efficient_attention(q[None], k[None], v[None], causal)
        close(actual[0], documented(q, k, v, lengths, causal=True, room=room, from_end=from_end))


def test_tensors_of_xformers_are_laid_end_to_end_and_split():
    parts = [torch.randn(2, 3, 2, 8), torch.randn(1, 4, 2, 8)]
    mask, x = xformers_attention.BlockDiagonalCausalMask.from_tensor_list(parts)
    assert x.shape == (1, 10, 2, 8)
    outs = mask.split(xformers_attention.memory_efficient_attention(x, x, x, mask))
    for out, part in zip(outs, parts, strict=True):
        heads = part.transpose(1, 2)
        close(
            out, functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2)
        )
    with pytest.raises(PortError, match="of 10 rows"):
        xformers_attention.memory_efficient_attention(x[:, 1:], x, x, mask)
    with pytest.raises(PortError, match="2 sequences of queries"):
        xformers_attention.BlockDiagonalMask.from_seqlens([1, 2], [3])


def test_a_mask_of_xformers_in_a_program(enabled):
    q, k, v = (tensor[None] for tensor in tensors(EQUAL, heads=2))

    def run(q, k, v):
        mask = xformers_attention.BlockDiagonalCausalMask.from_seqlens(EQUAL[0])
        return xformers_attention.memory_efficient_attention(q, k, v, mask)

    close(tpuport.compile(run)(q, k, v)[0], documented(q[0], k[0], v[0], EQUAL, causal=True))
    [call] = attention.explain()
    assert call.mask == "causal, segments"


def test_the_names_are_those_of_the_packages():
    with tpuport.gpu_shim():
        from flash_attn import bert_padding
        from xformers.ops import fmha
        from xformers.ops.fmha.attn_bias import BlockDiagonalMask

        flash = importlib.import_module("flash_attn.flash_attn_interface")
    assert fmha.BlockDiagonalMask is BlockDiagonalMask is xformers_attention.BlockDiagonalMask
    assert bert_padding.pad_input is bert_padding.pad_input
    assert flash.flash_attn_varlen_func is attention_packages.flash_attn_varlen_func
