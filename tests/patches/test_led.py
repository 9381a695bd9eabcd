"""LED's global attention, and its decoder with a cache of fixed shape, against transformers on the CPU."""

from typing import Any

import pytest
import torch
from transformers import LEDConfig, LEDForConditionalGeneration

import tpuport
from tpuport import compat
from tpuport.errors import PortError

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")

CONFIG = LEDConfig(
    vocab_size=96, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, attention_window=[4],
    max_encoder_position_embeddings=64, max_decoder_position_embeddings=32, bos_token_id=1, eos_token_id=2,
    pad_token_id=0, decoder_start_token_id=2,
)  # fmt: skip
TOKENS = 19  # no multiple of the window


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    """A model in torch and the same one ported."""
    torch.manual_seed(5)
    reference = LEDForConditionalGeneration(CONFIG).eval()
    for parameter in reference.parameters():
        if parameter.ndim > 1:
            parameter.data += 0.3 * torch.randn(parameter.shape)
    ported = LEDForConditionalGeneration(CONFIG).eval()
    ported.load_state_dict(reference.state_dict())
    return reference, tpuport.port(ported)


@pytest.fixture(scope="module")
def texts() -> dict[str, torch.Tensor]:
    """Two texts, one of them padded, with global tokens in other columns."""
    ids = torch.randint(3, 96, (2, TOKENS), generator=torch.Generator().manual_seed(6))
    mask = torch.ones_like(ids)
    mask[1, 13:] = 0
    is_global = torch.zeros_like(ids)
    is_global[0, [0, 9]] = 1
    is_global[1, 3] = 1
    return {"input_ids": ids, "attention_mask": mask, "global_attention_mask": is_global}


def test_forward_with_global_tokens_and_without(
    pair: tuple[Any, Any], texts: dict[str, torch.Tensor]
) -> None:
    reference, ported = pair
    compiled = tpuport.compile(ported)
    outputs = []
    for is_global in (texts["global_attention_mask"], torch.zeros_like(texts["input_ids"])):
        call = texts | {"global_attention_mask": is_global, "decoder_input_ids": texts["input_ids"][:, :5]}
        expected = reference(**call).logits
        actual = compat.to_torch(compat.as_jax(compiled(**call).logits))
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        outputs.append(expected)
    assert compiled.program.compilations == 1, "which tokens are global is a value"
    assert (outputs[0] - outputs[1]).abs().max() > 0.01, "global attention changes the logits"


@pytest.mark.slow  # of the forward above, and of other encoder-decoders
def test_generate(pair: tuple[Any, Any], texts: dict[str, torch.Tensor]) -> None:
    reference, ported = pair
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": []}
    expected = reference.generate(**texts, **options)
    assert torch.equal(ported.generate(**texts, **options), expected)
    assert len(set(expected[:, 1:].flatten().tolist())) > 4, "a constant output would prove little"


def test_attention_weights_are_refused(pair: tuple[Any, Any], texts: dict[str, torch.Tensor]) -> None:
    with pytest.raises(PortError, match="a column for each global token"):
        tpuport.compile(pair[1])(**texts, output_attentions=True)
