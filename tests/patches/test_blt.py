"""BLT with arrays of fixed shape, beside transformers."""

import copy

import pytest
import torch
from transformers import BltConfig, BltForCausalLM
from transformers.models.blt import modeling_blt

import tpuport
from tpuport.patches import blt

SIZES = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}


@pytest.mark.parametrize(("prime", "group"), [(1000000007, 3), (9576890767, 8)])
@pytest.mark.parametrize("most", [30000, 500002])
def test_hashes_overflow_as_64_bits_do(prime: int, group: int, most: int) -> None:
    ids = torch.randint(260, (2, 20), generator=torch.Generator().manual_seed(0))
    expected = modeling_blt.byte_group_hash_function(ids, group, prime, most)
    # As on the device.
    assert torch.equal(blt.hash_groups(ids.int(), group, prime, most), expected)


@pytest.mark.parametrize("longest", [None, 3])
@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9, 2.0])
def test_columns_without_a_patch_change_nothing(threshold: float, longest: int | None) -> None:
    entropies = torch.rand(3, 12, generator=torch.Generator().manual_seed(0))
    lengths = modeling_blt.BltPatcher.patch_lengths_from_entropies(entropies, 12, 4, threshold)
    expected = modeling_blt.process_patch_lengths(lengths, longest)
    fixed = blt.split_lengths(blt.lengths_from_entropies(entropies, 12, 4, threshold), longest)
    assert fixed.shape == (3, 13)
    patches = expected.shape[1]
    assert torch.equal(fixed[:, :patches], expected)
    assert not (fixed[:, patches:] >= 0).any()
    for first in (0, 1):
        ids = modeling_blt.BltModel._patch_ids_from_lengths(None, expected[:, first:], 12)
        assert torch.equal(blt.patch_of_each_byte(None, fixed[:, first:], 12), ids)


def small_model(longest: int | None) -> BltForCausalLM:
    part = SIZES | {"vocab_size": 260, "cross_attn_k": 2, "hidden_size_global": 32}
    config = BltConfig(
        patcher_config=SIZES | {"vocab_size": 260}, encoder_config=part, decoder_config=part,
        global_config=SIZES | {"hidden_size": 32}, cross_attn_k=2, max_patch_length=longest,
        encoder_hash_byte_group_vocab=512, encoder_hash_byte_group_size=[3, 8], patching_threshold=5.42,
    )  # fmt: skip
    torch.manual_seed(0)
    return BltForCausalLM(config).eval()


@pytest.mark.slow  # columns without a patch above
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
def test_rows_with_patches_of_other_lengths() -> None:
    model = small_model(4)
    ids = torch.randint(4, 260, (2, 15), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        _, lengths, _ = model.model.patcher(ids, patch_size=4, threshold=5.42, max_patch_length=4)
        expected = model(ids, use_cache=False).logits
    assert 3 < lengths.shape[1] < 15, "the entropies are all low or all high: the test shows little"
    compiled = tpuport.compile(tpuport.port(copy.deepcopy(model)))
    torch.testing.assert_close(compiled(ids, use_cache=False).logits.cpu(), expected, rtol=1e-4, atol=1e-4)
