"""Convolutions of audio codecs, whose padding follows from buffers: numbers that decide
shapes stay on the host.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tpuport.patches.switch import with_original


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


@with_original
def forward(
    original: Callable[..., torch.Tensor], self: Any, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Traced. The convolution's own forward, with the sizes on the host."""
    with _sizes_on_host(self):
        return original(self, *args, **kwargs)
