"""transformers classes whose own `generate` is one call of the model: the tokens that it gives on the CPU."""

import copy
from typing import Any

import jax
import pytest
import torch
from transformers import ParakeetCTCConfig, ParakeetForCTC

import tpuport


@pytest.fixture(scope="module")
def recognizer() -> Any:
    encoder = {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64,
        "num_mel_bins": 16, "subsampling_conv_channels": 8, "subsampling_factor": 4, "conv_kernel_size": 3,
    }  # fmt: skip
    return ParakeetForCTC(ParakeetCTCConfig(vocab_size=40, pad_token_id=39, encoder_config=encoder)).eval()


@pytest.mark.parametrize("options", [{}, {"return_dict_in_generate": True}])
def test_ctc(recognizer: Any, options: dict[str, bool]) -> None:
    mask = torch.ones(2, 64, dtype=torch.long)
    mask[1, 40:] = 0
    inputs = {"input_features": torch.randn(2, 64, 16), "attention_mask": mask}
    wanted = recognizer.generate(**inputs, **options)
    assert len(torch.unique(recognizer.generate(**inputs))) > 3
    model = tpuport.port(copy.deepcopy(recognizer), mesh=tpuport.create_mesh(devices=jax.devices()[:1]))
    tokens = model.generate(**inputs, **options)
    if options:
        torch.testing.assert_close(tokens.logits, wanted.logits)
        tokens, wanted = tokens.sequences, wanted.sequences
    assert torch.equal(tokens, wanted)
