"""The encoders of audio codecs, whose convolutions pad by buffers, beside transformers on the CPU."""

import copy

import pytest
import torch
from transformers import EncodecConfig, EncodecModel, MimiConfig
from transformers.models.mimi.modeling_mimi import MimiEncoder

import tpuport

SIZES = {
    "num_filters": 4,
    "hidden_size": 16,
    "upsampling_ratios": [4, 2],
    "audio_channels": 1,
    "num_lstm_layers": 1,
}
MODELS = {
    "encodec": lambda: EncodecModel(EncodecConfig(**SIZES, codebook_size=8, codebook_dim=16)).encoder,
    "encodec, not causal": lambda: (
        EncodecModel(
            EncodecConfig(
                **SIZES, codebook_size=8, codebook_dim=16, use_causal_conv=False, norm_type="time_group_norm"
            )
        ).encoder
    ),
    "mimi": lambda: MimiEncoder(MimiConfig(**SIZES)),
}


@pytest.mark.parametrize(
    # They have one convolution.
    "name",
    [pytest.param(name, marks=[] if name == "encodec" else pytest.mark.slow) for name in MODELS],
)
def test_every_length_is_padded_as_in_torch(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    ported = tpuport.port(copy.deepcopy(model))
    for length in (37, 40):
        audio = torch.randn(2, 1, length)
        with torch.no_grad():
            expected = model(audio)
        torch.testing.assert_close(ported(audio).cpu(), expected, rtol=1e-4, atol=1e-5)
