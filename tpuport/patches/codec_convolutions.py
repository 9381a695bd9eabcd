"""Convolutions of audio codecs, whose padding follows from buffers: numbers that decide
shapes stay on the host.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tpuport.patches.registry import original

_MODELS = "transformers.models"
ENCODEC = f"{_MODELS}.encodec.modeling_encodec:EncodecConv1d.forward"
MIMI = f"{_MODELS}.mimi.modeling_mimi:MimiConv1d.forward"
POCKET_TTS = (
    f"{_MODELS}.pocket_tts_audio_tokenizer.modeling_pocket_tts_audio_tokenizer"
    ":PocketTTSAudioTokenizerConv1d.forward"
)


@contextlib.contextmanager
def _sizes_on_host(module: Any) -> Iterator[None]:
    """The module with its buffers of sizes as its constructor computed them, from its
    convolution.
    """
    convolution = module.conv
    stride = convolution.stride[0]
    kernel_size = (convolution.kernel_size[0] - 1) * convolution.dilation[0] + 1
    sizes = {
        "stride": stride,
        "kernel_size": kernel_size,
        "padding_total": kernel_size - stride,
    }
    # An attribute of the module itself is read before its buffers.
    module.__dict__ |= {
        name: torch.tensor(size, device="cpu") for name, size in sizes.items()
    }
    try:
        yield
    finally:
        for name in sizes:
            del module.__dict__[name]


def _forward_of(target: str) -> Callable[..., torch.Tensor]:
    """The original forward, with the sizes on the host."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        with _sizes_on_host(self):
            return original(target)(self, *args, **kwargs)

    return forward


encodec_forward = _forward_of(ENCODEC)
mimi_forward = _forward_of(MIMI)
pocket_tts_forward = _forward_of(POCKET_TTS)
