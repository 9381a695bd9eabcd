"""`torch.inference_mode`, in which torch leaves out what tensors on the device need of
its dispatcher.
"""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def without_inference_mode() -> Iterator[None]:
    """In the block, torch decomposes operators and knows what a view views, which it
    does not in inference mode.
    """
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield
