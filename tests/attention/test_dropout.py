"""Attention whose weights are dropped at random, as in training."""

import pytest
import torch
from torch.nn import functional

import tpuport
from tpuport import attention, compat

SHARE = 0.25
KEYS = 64


@pytest.fixture(scope="module", autouse=True)
def enabled():
    tpuport.enable()
    yield
    tpuport.disable()


@pytest.fixture(scope="module")
def weights():
    """A compiled call that gives the weights [1, 2, Q, T] themselves: the values are an identity."""

    def attend(query, key, **options):
        identity = torch.eye(KEYS, device=query.device).expand(1, 2, KEYS, KEYS)
        return functional.scaled_dot_product_attention(query, key, identity, **options)

    compiled = tpuport.compile(attend)
    return lambda *tensors, **options: tpuport.to_cpu(compiled(*tensors, **options))


@pytest.fixture(scope="module")
def tensors():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, KEYS, 16, generator=generator) for _ in range(2)]


def test_kept_weights_grow_by_what_is_dropped(weights, tensors):
    dropped, whole = weights(*tensors, dropout_p=SHARE), weights(*tensors)
    is_kept = dropped != 0
    torch.testing.assert_close(dropped[is_kept], whole[is_kept] / (1 - SHARE))
    # Four standard deviations of 8,192 draws.
    assert (
        abs(is_kept.float().mean().item() - (1 - SHARE)) < 4 * (SHARE * (1 - SHARE) / is_kept.numel()) ** 0.5
    )


def test_calls_differ_and_a_seed_repeats_them(weights, tensors):
    torch.manual_seed(1)
    first, second = (weights(*tensors, dropout_p=SHARE) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(weights(*tensors, dropout_p=SHARE), first)
    # Heads and queries draw their own.
    assert not torch.equal(first[0, 0] == 0, first[0, 1] == 0)


def test_masked_keys_stay_masked(weights, tensors):
    dropped = weights(*tensors, dropout_p=SHARE, is_causal=True)
    assert torch.equal(dropped, dropped.tril())
    assert (dropped.tril()[..., KEYS // 2 :, : KEYS // 2] != 0).any()


def test_a_share_of_one_drops_all(weights, tensors):
    assert not weights(*tensors, dropout_p=1.0).any()


def test_outside_of_compiled_code(tensors):
    query, key = compat.as_torch([compat.to_jax(tensor) for tensor in tensors])
    with compat.environment():
        whole = functional.scaled_dot_product_attention(query, key, key)
        dropped = functional.scaled_dot_product_attention(query, key, key, dropout_p=SHARE)
        assert not torch.equal(whole, dropped)
        with pytest.raises(RuntimeError, match="between 0 and 1"):
            functional.scaled_dot_product_attention(query, key, key, dropout_p=1.5)


def test_the_report_says_why(weights, tensors):
    attention.explain(clear=True)
    weights(*(tensor[:, :, :32] for tensor in tensors[:1]), tensors[1], dropout_p=0.5)
    [call] = [call for call in attention.explain() if "dropout" in call.reason]
    assert call.implementation == "xla"


@pytest.mark.slow
def test_a_model_in_training():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64,
        attention_dropout=0.5,
    )  # fmt: skip
    model = LlamaForCausalLM(config).train()
    ids = torch.arange(12)[None]
    model.eval()
    expected = model(input_ids=ids).logits
    ported = tpuport.port(model)
    compiled = tpuport.compile(ported)
    torch.testing.assert_close(tpuport.to_cpu(compiled(input_ids=ids).logits), expected, rtol=1e-4, atol=1e-4)
    ported.train()
    first, second = (tpuport.to_cpu(compiled(input_ids=ids).logits) for _ in range(2))
    assert not torch.allclose(first, second)
