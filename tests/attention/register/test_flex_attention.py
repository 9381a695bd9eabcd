"""`flex_attention` on the device against torch's own on the host: masks, changes of scores, block masks, errors."""

import functools
import math
import warnings

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.nn.attention import flex_attention as library
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
    noop_mask,
    or_masks,
)

import tpuport
from tpuport import attention
from tpuport.attention import index_functions, xla_attention
from tpuport.attention.register import flex_attention as registered
from tpuport.errors import PortError

LENGTH = 40
# Of torch's compiler, when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")


@pytest.fixture(autouse=True)
def enabled(monkeypatch):
    tpuport.enable()
    attention.explain(clear=True)
    # torch's own definition without its compiler, which takes seconds for each mask.
    monkeypatch.setattr(library, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def on_device(tensor):
    return tensor.to("jax")


Q, K, V = (normal(2, 4, LENGTH, 16, seed=seed) for seed in range(3))


def causal(b, h, i, j):
    return i >= j


def near(b, h, i, j):
    return i - j <= 5


def some_rows(b, h, i, j):
    return (i > 3) & (j != h)


def document(numbers):
    return lambda b, h, i, j: numbers[b, i] == numbers[b, j]


def padding(real):
    return lambda b, h, i, j: real[b, j]


def alibi(score, b, h, i, j):
    return score + (h + 1) * 0.1 * (j - i)


def table(bias):
    return lambda score, b, h, i, j: 20 * torch.tanh(score / 20) + bias[h, i, j]


def row_by_row(bias):
    """As transformers does it: each index on what the one before left."""
    return lambda score, b, h, i, j: score + bias[b][0][i][j]


def all_cases(move):
    """(score_mod, mask_mod) by name, with what they look up where `move` puts it."""
    numbers = move(
        torch.randint(0, 3, (2, LENGTH), generator=torch.Generator().manual_seed(3)).sort(-1).values
    )
    real = move(torch.arange(LENGTH) < torch.tensor([[30], [LENGTH]]))
    return {
        "nothing": (None, None),
        "causal": (None, causal),
        "window": (None, and_masks(causal, near)),
        "documents": (None, and_masks(document(numbers), causal)),
        "padding": (None, padding(real)),
        "either": (None, or_masks(near, padding(real))),
        "heads and empty rows": (None, some_rows),
        "no mask": (None, noop_mask),
        "alibi": (alibi, causal),
        "table": (table(move(normal(4, LENGTH, LENGTH, seed=4))), None),
        "row by row": (row_by_row(move(normal(2, 1, LENGTH, LENGTH, seed=5))), padding(real)),
    }


def attend(query, key, value, score_mod, mask_mod, **options):
    if mask_mod is not None:
        sizes = query.shape[0], query.shape[1], query.shape[2], key.shape[2]
        options["block_mask"] = create_block_mask(mask_mod, *sizes, device=query.device)
    return flex_attention(query, key, value, score_mod, return_aux=AuxRequest(lse=True), **options)


@functools.cache
def expected():
    return {
        name: attend(Q.double(), K.double(), V.double(), *case)
        for name, case in all_cases(lambda tensor: tensor).items()
    }


def assert_equal(got, want, tolerance=1e-5):
    (out, aux), (expected_out, expected_aux) = got, want
    for actual, right in ((out, expected_out), (aux.lse, expected_aux.lse)):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual.cpu().double(), right, rtol=tolerance, atol=tolerance)


@pytest.mark.slow  # in programs below
def test_equals_torch_outside_of_programs():
    inputs = [on_device(x) for x in (Q, K, V)]
    cases = all_cases(on_device)
    for name in ("documents", "either", "row by row"):
        assert_equal(attend(*inputs, *cases[name]), expected()[name])
    out, aux = attend(*inputs, None, some_rows)
    assert (out[:, :, :4] == 0).all()
    assert (aux.lse[:, :, :4] == -math.inf).all()


def test_equals_torch_in_programs_and_masks_keep_their_structure():
    cases = all_cases(on_device)

    def run(query, key, value):
        compiled = torch.compile(flex_attention)
        plain = compiled(query, key, value)
        return plain, {name: attend(query, key, value, *case) for name, case in cases.items()}

    plain, results = tpuport.compile(run)(Q, K, V)
    for name, result in results.items():
        assert_equal(result, expected()[name])
    assert torch.equal(plain.cpu(), results["nothing"][0].cpu())
    masks = {call.mask for call in attention.explain()}
    assert {"none", "causal", "window 6", "causal, segments", "padding", "a function"} <= masks


def test_a_long_sequence_has_the_fused_kernel():
    x = normal(1, 1, 1024, 32)

    def run(x):
        return flex_attention(x, x, x, block_mask=create_block_mask(causal, None, None, 1024, 1024, x.device))

    program = tpuport.compile(run)
    torch.testing.assert_close(
        program(x).cpu(), torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    )
    [call] = attention.explain()
    assert (call.implementation, call.mask) == ("flash", "causal")


@pytest.mark.parametrize("name", ["heads and empty rows", pytest.param("table", marks=pytest.mark.slow)])
def test_blocks_of_queries_are_as_the_whole(monkeypatch, name):
    # Three blocks, of which the last overlaps.
    monkeypatch.setattr(xla_attention, "SCORES_LIMIT", 2 * 4 * LENGTH * 4 * 17)
    monkeypatch.setattr(registered, "_DENSE_LIMIT", 1)
    inputs = [on_device(x) for x in (Q, K, V)]
    assert_equal(attend(*inputs, *all_cases(on_device)[name]), expected()[name])


def test_the_largest_scores():
    inputs = [on_device(x) for x in (Q, K, V)]
    mask = create_block_mask(some_rows, None, 4, LENGTH, LENGTH, device="jax")
    _, aux = flex_attention(*inputs, block_mask=mask, scale=0.5, return_aux=AuxRequest(max_scores=True))
    scores = Q.double() @ K.double().mT * 0.5
    visible = create_mask(some_rows, 2, 4, LENGTH, LENGTH, device="cpu")
    largest = scores.masked_fill(~visible, -math.inf).amax(-1)
    assert aux.lse is None
    torch.testing.assert_close(aux.max_scores.cpu().double(), largest, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_half_precision_is_computed_in_float32(dtype):
    inputs = [x.to(dtype) for x in (Q, K, V)]
    bias = normal(4, LENGTH, LENGTH, seed=4)
    want = attend(*inputs, table(bias), causal)
    out, aux = attend(*map(on_device, inputs), table(on_device(bias)), causal)
    assert (out.dtype, aux.lse.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(aux.lse.cpu(), want[1].lse)
    # Weights and outputs are rounded to `dtype`, where exponentials that differ in the last bit of float32, as those of
    # two processors do, may round to two neighbours. Rounding moves a weight or an output by half an epsilon at most.
    magnitudes = attend(*inputs[:2], inputs[2].abs(), table(bias), causal)[0].float()
    bound = 2 * torch.finfo(dtype).eps * magnitudes
    assert ((out.cpu().float() - want[0].float()).abs() <= bound).all()


def test_groups_of_heads_and_one_row_of_keys():
    def run(query, key, value, device):
        mask = create_block_mask(causal, 2, 4, LENGTH, LENGTH, device=device)
        return flex_attention(query, key, value, block_mask=mask, enable_gqa=True)

    shared = [x[:1, :2] for x in (K, V)]
    got = run(*map(on_device, (Q, *shared)), "jax")
    torch.testing.assert_close(got.cpu(), run(Q, *shared, "cpu"))


@pytest.mark.slow  # each example compiles what it needs
@given(st.integers(1, 3), st.integers(1, 30), st.integers(1, 30), st.integers(-3, 9), st.data())
@settings(settings.get_profile("few"))
def test_any_sizes_and_masks(batch, queries, keys, width, data):
    query = normal(batch, 2, queries, 8)
    key, value = normal(batch, 2, keys, 8, seed=1), normal(batch, 2, keys, 8, seed=2)
    real = torch.tensor(data.draw(st.lists(st.booleans(), min_size=keys, max_size=keys))).expand(batch, keys)

    def near(b, h, i, j):
        return (i + h - j <= width) & (i != b)

    def case(move):
        combine = or_masks if width % 2 else and_masks
        return None if width < 0 else alibi, combine(near, padding(move(real)))

    want = attend(*(x.double() for x in (query, key, value)), *case(lambda tensor: tensor))
    assert_equal(attend(*map(on_device, (query, key, value)), *case(on_device)), want)


# --- masks ---


def test_masks_and_tables_are_torchs():
    mask = or_masks(near, and_masks(causal, some_rows))
    host = create_block_mask(mask, 2, 3, 150, 130, device="cpu", BLOCK_SIZE=32)
    device = create_block_mask(mask, 2, 3, 150, 130, device="jax", BLOCK_SIZE=32)
    tables = [name for name, value in vars(host).items() if isinstance(value, torch.Tensor)]
    assert "kv_num_blocks" in tables
    for name in tables:
        assert torch.equal(getattr(device, name).cpu(), getattr(host, name)), name
    assert (device.shape, device.sparsity()) == (host.shape, host.sparsity())
    assert torch.equal(device.to_dense().cpu(), host.to_dense())

    def hides(score, b, h, i, j):
        return torch.where(i >= j, score, -math.inf)

    for function in (mask, hides):
        got = create_mask(function, None, 3, 20, 24, device="jax")
        assert torch.equal(got.cpu(), create_mask(function, None, 3, 20, 24, device="cpu"))


def within(width):
    return lambda b, h, i, j: abs(i - j) <= width


def test_a_mask_from_the_host():
    real = torch.arange(LENGTH) < torch.tensor([[30], [LENGTH]])
    mask = create_block_mask(padding(real), 2, None, LENGTH, LENGTH, device="cpu")
    got = flex_attention(*map(on_device, (Q, K, V)), block_mask=mask)
    torch.testing.assert_close(got.cpu(), flex_attention(Q, K, V, block_mask=mask))
    program = tpuport.compile(lambda mask, *inputs: flex_attention(*inputs, block_mask=mask))
    # What it looks up is an argument of the program.
    for lengths in ([[30], [LENGTH]], [[LENGTH], [20]]):
        real.copy_(torch.arange(LENGTH) < torch.tensor(lengths))
        torch.testing.assert_close(program(mask, Q, K, V).cpu(), flex_attention(Q, K, V, block_mask=mask))
    assert program.program.compilations == 1
    # What the compiled function itself has captured may change, and a program would not see it.
    with pytest.raises(PortError, match=r"\[2, 40\] on the host"):
        tpuport.compile(lambda *inputs: flex_attention(*inputs, block_mask=mask))(Q, K, V)
    # Their functions have the same code.
    for width in (3, 8):
        mask = create_block_mask(within(width), None, None, LENGTH, LENGTH, device="cpu")
        captured = tpuport.compile(lambda *inputs, mask=mask: flex_attention(*inputs, block_mask=mask))
        for got in (captured(Q, K, V), program(mask, Q, K, V)):
            torch.testing.assert_close(got.cpu(), flex_attention(Q, K, V, block_mask=mask))


def test_tables_alone_hide_nothing_and_that_is_said():
    counts, indices = torch.ones(1, 1, 2, dtype=torch.int32), torch.zeros(1, 1, 2, 2, dtype=torch.int32)
    mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=LENGTH // 2)
    with pytest.warns(UserWarning, match="tables do not list"):
        got = flex_attention(*map(on_device, (Q, K, V)), block_mask=mask)
    torch.testing.assert_close(got.cpu(), flex_attention(Q, K, V, block_mask=mask))
    whole = create_block_mask(noop_mask, None, None, LENGTH, LENGTH, device="jax")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        flex_attention(*map(on_device, (Q, K, V)), block_mask=whole)


# --- what is refused ---


@pytest.mark.parametrize(
    ("score_mod", "message"),
    [
        (lambda score, b, h, i, j: score if i > j else -score, "reads the value"),
        (lambda score, b, h, i, j: score * i.item(), "reads the value"),
        (lambda score, b, h, i, j: score[None], r"shape \[1\]"),
        (lambda score, b, h, i, j: 1.0, "returned float"),
    ],
)
def test_a_function_that_is_not_of_one_pair(score_mod, message):
    with pytest.raises(PortError, match=message):
        flex_attention(*map(on_device, (Q, K, V)), score_mod=score_mod)


def test_a_mask_of_numbers():
    with pytest.raises(PortError, match="returns int32"):
        create_mask(lambda b, h, i, j: i - j, None, None, 4, 4, device="jax")


def test_errors_are_torchs():
    mask = create_block_mask(causal, None, None, 20, LENGTH, device="cpu")
    calls = {
        "same number of heads": lambda q, k, v: flex_attention(q, k[:, :2], v[:, :2]),
        "multiple of kv heads": lambda q, k, v: flex_attention(q, k[:, :3], v[:, :3], enable_gqa=True),
        "embedding dimension": lambda q, k, v: flex_attention(q, k[..., :8], v),
        "larger length|smaller length": lambda q, k, v: flex_attention(q, k, v, block_mask=mask),
        "4D tensors": lambda q, k, v: flex_attention(q[0], k[0], v[0]),
        "same batch size": lambda q, k, v: flex_attention(q, k[:1], v[:1]),
    }
    for message, call in calls.items():
        for inputs in ((Q, K, V), tuple(map(on_device, (Q, K, V)))):
            with pytest.raises((ValueError, RuntimeError), match=message):
                call(*inputs)


def test_gradients_are_those_of_a_program():
    query, host = on_device(Q).requires_grad_(), Q.clone().requires_grad_()
    flex_attention(query, on_device(K), on_device(V)).sin().sum().backward()
    torch.nn.functional.scaled_dot_product_attention(host, K, V).sin().sum().backward()
    torch.testing.assert_close(query.grad.cpu(), host.grad, rtol=1e-4, atol=1e-4)

    from torchax import interop

    bias = normal(4, LENGTH, LENGTH, seed=4)

    def loss(query, bias):
        return (flex_attention(query, query, query, table(bias)) * query.detach()).sum()

    leaf = Q.double().requires_grad_()
    scores = leaf @ leaf.mT / 4
    weights = (20 * torch.tanh(scores / 20) + bias.double()).softmax(-1)
    ((weights @ leaf) * Q.double()).sum().backward()
    program = tpuport.compile(interop.jax_value_and_grad(loss))
    torch.testing.assert_close(program(Q, bias)[1].cpu().double(), leaf.grad, rtol=1e-4, atol=1e-4)


# --- who calls it ---


def test_the_host_is_left_alone(monkeypatch):
    # What other tests compiled counts towards the limit of torch.compile.
    torch._dynamo.reset()
    monkeypatch.setattr(library, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    attend = torch.compile(flex_attention, backend="eager", fullgraph=True)
    build = torch.compile(create_block_mask, backend="eager", fullgraph=True)
    mask = build(causal, None, None, LENGTH, LENGTH, "cpu")
    with warnings.catch_warnings():
        # torch's own, that its host code is slow.
        warnings.filterwarnings("ignore", message="flex_attention called without")
        assert torch.equal(attend(Q, K, V, block_mask=mask), flex_attention(Q, K, V, block_mask=mask))
    assert not attention.explain()


def test_through_diffusers():
    from diffusers.models.attention_dispatch import _native_flex_attention

    inputs = [x.transpose(1, 2) for x in (Q, K, V)]
    bias = normal(2, 1, LENGTH, LENGTH, seed=6)
    for mask, is_causal in ((bias > 0, False), (bias, False), (bias, True)):
        want = _native_flex_attention(*inputs, attn_mask=mask, is_causal=is_causal)
        got = _native_flex_attention(*map(on_device, inputs), attn_mask=on_device(mask), is_causal=is_causal)
        torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)


def test_through_transformers(monkeypatch):
    from transformers.integrations import flex_attention as integration

    # Compiling it for the host takes ten seconds.
    monkeypatch.setattr(
        integration, "compile_friendly_flex_attention", lambda *x, training, **y: flex_attention(*x, **y)
    )
    forward = integration.flex_attention_forward
    module = torch.nn.Module().eval()
    bias = normal(2, 1, LENGTH, LENGTH, seed=6)
    inputs = [Q, K[:, :2], V[:, :2]]
    want, _ = forward(module, *inputs, bias, scaling=0.3, softcap=5.0)
    got, lse = forward(module, *map(on_device, inputs), on_device(bias), scaling=0.3, softcap=5.0)
    assert lse.shape == (2, 4, LENGTH)
    torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)


def test_a_function_is_read_once():
    calls = []

    def counted(b, h, i, j):
        calls.append(i)
        return i >= j

    flex_attention(
        *map(on_device, (Q, K, V)),
        block_mask=create_block_mask(counted, None, None, LENGTH, LENGTH, device="jax"),
    )
    # Once for the tables and once for attention, not for each pair.
    assert len(calls) == 2
    assert index_functions.count_indices(3)[0].tolist() == [0, 1, 2]
