"""X-MOD, which selects the rows of each language by a mask, beside transformers on the CPU."""

import copy

import pytest
import torch
from transformers import XmodConfig, XmodModel

import tpuport


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
@pytest.mark.parametrize("before", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_each_row_has_its_languages_adapter(before: bool) -> None:
    torch.manual_seed(0)
    config = XmodConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48,
        languages=("en_XX", "de_DE", "fr_XX"), default_language="de_DE", adapter_layer_norm=before,
        adapter_reuse_layer_norm=not before, ln_before_adapter=before,
    )  # fmt: skip
    reference = XmodModel(config).eval()
    model = tpuport.port(copy.deepcopy(reference))
    # In a function of the user's own, whose own selections would ask for values.
    compiled = tpuport.compile(lambda ids, lang_ids: model(ids, lang_ids=lang_ids))
    ids = torch.randint(3, 64, (3, 5))
    # One program for all languages; another one without any, where the default counts.
    for languages in (torch.tensor([2, 0, 2]), torch.tensor([1, 1, 0]), None):
        expected = reference(ids, lang_ids=languages).last_hidden_state
        actual = tpuport.to_cpu(compiled(ids, lang_ids=languages).last_hidden_state)
        torch.testing.assert_close(actual, expected.detach(), rtol=1e-4, atol=1e-5)
    assert compiled.program.compilations == 2
