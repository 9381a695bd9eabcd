"""`F.scaled_dot_product_attention` on the device against torch's own in float64, for every kind of call it takes."""

import threading

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import tpuport
from tpuport import attention, compat

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def registered():
    with attention.register():
        yield
    attention.explain(clear=True)


def ported(tensor):
    return compat.to_device(tensor) if type(tensor) is torch.Tensor else tensor


def call(q, k, v, mask=None, **options):
    """The call on the device."""
    with compat.environment():
        out = functional.scaled_dot_product_attention(*map(ported, (q, k, v)), ported(mask), **options)
        return compat.to_torch(compat.as_jax(out))


def jitted(q, k, v, mask=None, **options):
    """The call in a program, where nothing of the tensors is known but their shapes."""
    given_arrays = {
        n: compat.to_jax(x) for n, x in {"q": q, "k": k, "v": v, "mask": mask}.items() if x is not None
    }

    def run(arrays):
        with compat.environment():
            tensors = {name: compat.wrap(array) for name, array in arrays.items()}
            q, k, v, mask = (tensors.get(name) for name in ("q", "k", "v", "mask"))
            return compat.as_jax(functional.scaled_dot_product_attention(q, k, v, mask, **options))

    return compat.to_torch(jax.jit(run)(given_arrays))


def expected(q, k, v, mask=None, **options):
    q, k, v = (x.double() for x in (q, k, v))
    mask = mask.float() if mask is not None and mask.is_floating_point() else mask
    return functional.scaled_dot_product_attention(q, k, v, mask, **options)


def check(q, k, v, mask=None, *, runs=(call, jitted), **options):
    want = expected(q, k, v, mask, **options)
    for run in runs:
        got = run(q, k, v, mask, **options)
        assert got.dtype == q.dtype
        assert got.shape == want.shape
        tolerance = TOLERANCE[q.dtype]
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype)


def partly(draw, dims):
    """The dimensions, some of them 1, some leading ones missing."""
    kept = tuple(draw(st.sampled_from([n, 1])) for n in dims)
    return kept[draw(st.integers(0, len(kept))) :]


@st.composite
def problems(draw):
    """Arguments of a call that torch takes; 32 numbers a head, so that either implementation can have it."""
    torch.manual_seed(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    batch = draw(st.sampled_from([(), (2,), (2, 3)]))
    queries, keys = draw(st.sampled_from([(1, 6), (7, 7), (5, 9), (9, 4)]))
    options = {"enable_gqa": draw(st.booleans())}
    if options["enable_gqa"]:
        groups = draw(st.sampled_from([(4, 4), (2, 2), (1, 1), (1, 2)]))
        leading = [(*partly(draw, batch), heads) for heads in (4, *groups)]
    else:
        leading = [partly(draw, (*batch, 4)) for _ in range(3)]
    q, k, v = (
        normal(*lead, length, width, dtype=dtype)
        for lead, length, width in zip(leading, (queries, keys, keys), (32, 32, 48), strict=True)
    )
    options["scale"] = draw(st.sampled_from([None, 0.5]))
    kind = draw(st.sampled_from(["none", "causal", "bool", "same dtype", "float32"]))
    options["is_causal"] = kind == "causal"
    key_lead = (*leading[1][:-1], 1) if options["enable_gqa"] else leading[1]
    scores = torch.broadcast_shapes(leading[0], key_lead)
    if kind in ("none", "causal"):
        return q, k, v, None, options
    sizes = [draw(st.sampled_from([n, 1])) for n in (queries, keys)]
    shape = (*partly(draw, scores), *sizes)
    if kind == "bool":
        return q, k, v, torch.rand(shape) < 0.6, options
    hidden = torch.rand(shape) < 0.3
    mask = normal(*shape).masked_fill(hidden, -torch.inf).to(dtype if kind == "same dtype" else torch.float32)
    return q, k, v, mask, options


@settings(settings.get_profile("few"), deadline=None)
@given(problem=problems(), run=st.sampled_from([call, jitted]))
def test_every_call_that_torch_takes(problem, run):
    q, k, v, mask, options = problem
    check(q, k, v, mask, runs=(run,), **options)


@settings(settings.get_profile("few"), deadline=None)
@given(problem=problems(), run=st.sampled_from([call, jitted]))
def test_the_fused_form_of_every_call_whose_mask_has_structure(problem, run):
    q, k, v, mask, options = problem
    if mask is not None:
        mask = mask[(0,) * (mask.ndim - 2)][:1]
    with attention.register(implementation="flash"):
        check(q, k, v, mask, runs=(run,), **options)
    assert {made.implementation for made in attention.explain(clear=True)} == {"flash"}


@pytest.mark.parametrize("shape", [(0, 2, 3, 8), (2, 0, 3, 8), (2, 2, 0, 8), (2, 2, 3, 0)])
def test_empty_queries(shape):
    keys = (*shape[:2], 5, shape[3])
    check(normal(*shape), normal(*keys), normal(*keys[:3], 4))


def test_no_keys_give_zeros():
    check(normal(2, 2, 3, 8), normal(2, 2, 0, 8), normal(2, 2, 0, 4))
    check(normal(2, 2, 3, 8), normal(2, 2, 0, 8), normal(2, 2, 0, 4), is_causal=True)


@pytest.mark.parametrize(
    "mask", [torch.zeros(3, 5).bool(), torch.full((3, 5), -torch.inf), torch.zeros(1, 5).bool()]
)
def test_a_query_that_sees_no_key_gets_zeros_as_in_torch(mask):
    q, k = normal(1, 1, 3, 8), normal(1, 1, 5, 8)
    check(q, k, k, mask)
    assert not call(q, k, k, mask).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_query_whose_keys_all_have_the_lowest_number_gets_their_mean_as_in_torch(dtype):
    q, k = normal(2, 4, 3, 8, dtype=dtype), normal(2, 2, 5, 8, dtype=dtype)
    mask = torch.zeros(2, 1, 3, 5, dtype=dtype)
    mask[0, 0, 0, 1:] = mask[0, 0, 1] = mask[1, 0, 2] = torch.finfo(dtype).min
    # Of these, two have the lowest number and three are hidden.
    mask[1, 0, 2, 2:] = -torch.inf
    check(q, k, k, mask, enable_gqa=True)


def test_structure_with_keys_of_the_lowest_number_alone_gives_zeros():
    """torch gives the mean of their values; a mask of padding means that there is nothing to attend to."""
    q, k = normal(1, 1, 2, 8), normal(1, 1, 5, 8)
    assert not call(q, k, k, torch.full((1, 5), torch.finfo(torch.float32).min)).any()


def test_a_long_row_of_padding_by_bfloat16s_lowest_number():
    q, k = normal(2, 4, 40, 32, dtype=torch.bfloat16), normal(2, 4, 600, 32, dtype=torch.bfloat16)
    mask = torch.zeros(2, 1, 1, 600, dtype=torch.bfloat16)
    mask[1, ..., 100:] = torch.finfo(torch.bfloat16).min
    seen = mask == 0
    for run in (call, jitted):
        out, want = run(q, k, k, mask), expected(q, k, k, seen)
        torch.testing.assert_close(out.double(), want, atol=3e-2, rtol=3e-2)
    assert {made.implementation for made in attention.explain()} == {"flash"}


@pytest.mark.parametrize("make", [causal_lower_right, causal_upper_left])
def test_causal_biases_of_torch(make):
    q, k = normal(2, 2, 5, 32), normal(2, 2, 9, 32)
    got = call(q, k, k, make(5, 9))
    mask = torch.ones(5, 9).bool().tril(4 if make is causal_lower_right else 0)
    torch.testing.assert_close(got.double(), expected(q, k, k, mask), atol=2e-5, rtol=2e-5)
    assert next(iter(attention.explain())).mask.startswith("causal")
    with pytest.raises(tpuport.PortError, match="5 queries and 9 keys"):
        call(k, k, k, make(5, 9))


def test_scale_may_be_a_tensor_of_either_side():
    q = normal(2, 2, 5, 32)
    want = expected(q, q, q, scale=0.3)
    for scale in (torch.tensor(0.3), ported(torch.tensor(0.3))):
        torch.testing.assert_close(call(q, q, q, scale=scale).double(), want, atol=2e-5, rtol=2e-5)


def test_float16_is_computed_in_xla():
    q = normal(1, 2, 40, 32).half()
    attention.explain(clear=True)
    torch.testing.assert_close(call(q, q, q).double(), expected(q, q, q), atol=2e-3, rtol=2e-3)
    (made,) = attention.explain()
    assert (made.implementation, "float16" in made.reason) == ("xla", True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dropout_p": 1.1}, "dropout"),
        ({"mask": torch.ones(5, 5).bool(), "is_causal": True}, "not both"),
        ({"mask": torch.ones(5, 5).int()}, "int32"),
        ({"mask": torch.ones(5, 5).half()}, "float16"),
        ({"mask": torch.ones(5).bool()}, "does not broadcast"),
        ({"mask": torch.ones(3, 1, 5, 5).bool()}, "does not broadcast"),
        ({"mask": torch.ones(1, 2, 4, 5, 5).bool()}, "does not broadcast"),
        ({"k": normal(2, 4, 5, 16)}, "head dimension"),
        ({"k": normal(2, 4, 6, 8)}, "length"),
        ({"k": normal(2, 2, 5, 8), "v": normal(2, 2, 5, 8)}, "enable_gqa=True"),
        ({"k": normal(3, 4, 5, 8)}, "do not broadcast"),
        ({"k": normal(2, 3, 5, 8), "enable_gqa": True}, "4 query heads cannot share 3 key heads"),
        ({"v": normal(2, 8, 5, 8), "enable_gqa": True}, "4 query heads cannot share 8 value heads"),
        ({"q": normal(5, 8), "k": normal(5, 8), "v": normal(5, 8), "enable_gqa": True}, "without a dimension of heads"),
        ({"q": normal(8)}, "fewer than two"),
        ({"k": normal(2, 4, 5, 8).half()}, "float16"),
        ({n: torch.ones(2, 4, 5, 8).int() for n in "qkv"}, "same floating dtype"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)  # fmt: skip
def test_refused(change, message):
    arguments = {name: normal(2, 4, 5, 8) for name in "qkv"} | change
    with pytest.raises(tpuport.PortError, match=message):
        call(**arguments)


def test_tensors_on_both_sides_are_named():
    q = normal(1, 2, 5, 8)
    mask = torch.ones(5, 5).bool()
    with compat.environment():
        with pytest.raises(tpuport.PortError, match=r"key \[1, 2, 5, 8\] is on the host, value"):
            functional.scaled_dot_product_attention(ported(q), q, q)
        with pytest.raises(tpuport.PortError, match=r"attn_mask .* is on the host"):
            functional.scaled_dot_product_attention(ported(q), ported(q), ported(q), attn_mask=mask)


def test_tensors_of_the_host_stay_with_torch():
    q = normal(1, 2, 5, 8).double()
    want = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    with compat.environment():
        for got in (
            functional.scaled_dot_product_attention(q, q, q, is_causal=True),
            functional.scaled_dot_product_attention(query=q, key=q, value=q, is_causal=True),
        ):
            assert not compat.is_ported(got)
            torch.testing.assert_close(got, want, rtol=0, atol=0)
        functional.scaled_dot_product_attention(query=q, key=q, value=q, dropout_p=0.5)
    assert not attention.explain()


def test_the_operator_beneath_it():
    q = normal(1, 2, 5, 8)
    with compat.environment():
        for operator in (
            torch.ops.aten.scaled_dot_product_attention,
            torch.ops.aten.scaled_dot_product_attention.default,
        ):
            got = compat.to_torch(compat.as_jax(operator(*[ported(q)] * 3, None, 0.0, True)))
            torch.testing.assert_close(got.double(), expected(q, q, q, is_causal=True), atol=2e-5, rtol=2e-5)
    assert sum(attention.explain().counts) == 2


@pytest.mark.parametrize("key_padding", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_attention_of_torch_arrives_here(key_padding, causal):
    torch.manual_seed(0)
    model = torch.nn.MultiheadAttention(64, 2, batch_first=True, kdim=48, vdim=40).eval()
    x, key, value = normal(2, 30, 64), normal(2, 30, 48), normal(2, 30, 40)
    padding = torch.arange(30) >= torch.tensor([[30], [20]]) if key_padding else None
    options = {"is_causal": causal, "attn_mask": torch.ones(30, 30).bool().triu(1) if causal else None}
    with torch.no_grad():
        want, _ = model(x, key, value, key_padding_mask=padding, need_weights=False, **options)
    tpuport.port(model)
    got, weights = tpuport.compile(model)(
        x, key, value, key_padding_mask=padding, need_weights=False, **options
    )
    torch.testing.assert_close(tpuport.to_cpu(got), want, atol=2e-5, rtol=2e-5)
    assert weights is None
    (made,) = attention.explain()
    assert (made.source, made.module, made.query) == ("torch", "MultiheadAttention", (2, 2, 30, 32))


def test_multi_head_attention_that_gives_its_weights_is_torchs():
    model = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = normal(2, 3, 8)
    with torch.no_grad():
        want = model(x, x, x)
    tpuport.port(model)
    for got, reference in zip(tpuport.compile(model)(x, x, x), want, strict=True):
        torch.testing.assert_close(tpuport.to_cpu(got), reference, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"enable_gqa": True}], ids=str)
def test_gradients_are_torchs(options):
    torch.manual_seed(0)
    kv_heads = 2 if "enable_gqa" in options else 4
    q, k, v = normal(2, 4, 20, 32), normal(2, kv_heads, 24, 32), normal(2, kv_heads, 24, 40)
    weight = normal(2, 4, 20, 40)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    (functional.scaled_dot_product_attention(*leaves, **options) * weight.double()).sum().backward()

    def loss(arrays):
        with compat.environment():
            out = functional.scaled_dot_product_attention(*map(compat.wrap, arrays), **options)
        return jnp.sum(compat.as_jax(out) * compat.to_jax(weight))

    with attention.register(implementation="flash"):
        got = jax.jit(jax.grad(loss))([compat.to_jax(x) for x in (q, k, v)])
    for array, leaf in zip(got, leaves, strict=True):
        np.testing.assert_allclose(array, leaf.grad, atol=5e-5, rtol=5e-5)


def test_another_thread_has_what_is_registered():
    q, found = normal(1, 2, 5, 8), []
    thread = threading.Thread(target=lambda: found.append(call(q, q, q)))
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0].double(), expected(q, q, q), atol=2e-5, rtol=2e-5)
    assert len(attention.explain()) == 1
