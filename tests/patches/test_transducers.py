"""The decoders that read back what they have written, beside transformers' own on the CPU."""

import copy

import pytest
import torch
from transformers import ParakeetTDTConfig
from transformers.models.nemotron3_5_asr.modeling_nemotron3_5_asr import Nemotron3_5AsrRNNTDecoder
from transformers.models.nemotron_asr_streaming.modeling_nemotron_asr_streaming import (
    NemotronAsrStreamingRNNTDecoder,
)
from transformers.models.parakeet.generation_parakeet import ParakeetRNNTDecoderCache
from transformers.models.parakeet.modeling_parakeet import ParakeetRNNTDecoder

import tpuport

BLANK = 19
# A step of the first tokens, one with a blank in the second row, one of blanks alone, and one more.
STEPS = ([3, 4], [5, BLANK], [BLANK, BLANK], [6, 7])


# The decoders of Nemotron are copies of Parakeet's.
@pytest.mark.parametrize(
    "decoder_class",
    [
        ParakeetRNNTDecoder,
        pytest.param(Nemotron3_5AsrRNNTDecoder, marks=pytest.mark.slow),
        pytest.param(NemotronAsrStreamingRNNTDecoder, marks=pytest.mark.slow),
    ],
)
def test_rows_with_a_blank_keep_their_state_as_in_torch(decoder_class: type[torch.nn.Module]) -> None:
    config = ParakeetTDTConfig(
        vocab_size=20, blank_token_id=BLANK, decoder_hidden_size=16, num_decoder_layers=2
    )
    torch.manual_seed(0)
    decoder = decoder_class(config).eval()
    expected_cache = ParakeetRNNTDecoderCache(config)
    with torch.no_grad():
        expected = [decoder(torch.tensor(step)[:, None], cache=expected_cache).clone() for step in STEPS]
        expected_alone = decoder(torch.tensor(STEPS))

    compiled = tpuport.compile(tpuport.port(copy.deepcopy(decoder)))
    cache = ParakeetRNNTDecoderCache(config)
    for step, output in zip(STEPS, expected, strict=True):
        ours = tpuport.to_cpu(compiled(torch.tensor(step)[:, None], cache=cache))
        torch.testing.assert_close(ours, output)
    torch.testing.assert_close(tpuport.to_cpu(compiled(torch.tensor(STEPS))), expected_alone)
