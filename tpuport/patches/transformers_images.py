"""Images [rows, most images of a row, ...] of Idefics2, Idefics3 and SmolVLM, where
rows with fewer images are padded.

transformers recognizes padding by its zeros and selects the other images by a boolean
mask, whose number of true elements a trace does not know. `tpuport.generate` looks at
the pixels on the host and says which images are real.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tpuport.patches.switch import with_original


class _Known(threading.local):
    """What this thread traces.

    Attributes:
        real_images: of the prompt, bool [rows, images] on the host; None where nobody
            knows.
    """

    real_images: torch.Tensor | None = None


_known = _Known()


@contextlib.contextmanager
def known_images(real_images: torch.Tensor | None) -> Iterator[None]:
    """In the block, `real_images` [rows, images] are more than padding."""
    before = _known.real_images
    # Without any image, transformers' own code says what comes of that.
    has_images = real_images is not None and bool(real_images.any())
    _known.real_images = real_images if has_images else None
    try:
        yield
    finally:
        _known.real_images = before


@with_original
def idefics2_features(
    original: Callable[..., Any],
    self: Any,
    pixel_values: torch.Tensor,
    pixel_attention_mask: torch.Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """Traced. `Idefics2Model.get_image_features` of images [B, N, C, H, W] with a mask
    [B, N, H, W].
    """
    if _known.real_images is None:
        return original(self, pixel_values, pixel_attention_mask, **kwargs)
    pixels, mask = _select_real(self, pixel_values, pixel_attention_mask)
    # A patch counts if all of its pixels do.
    patches = _count_pixels(self, mask) == self.config.vision_config.patch_size**2
    outputs = self.vision_model(
        pixel_values=pixels, patch_attention_mask=patches, **kwargs
    )
    features = self.connector(
        outputs.last_hidden_state, attention_mask=patches.reshape(len(patches), -1)
    )
    return _with_features(outputs, features)


@with_original
def any_pixel_features(
    original: Callable[..., Any],
    self: Any,
    pixel_values: torch.Tensor,
    pixel_attention_mask: torch.Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """Traced. `Idefics3Model.get_image_features`, and that of SmolVLM, of images
    [B, N, C, H, W] with a mask [B, N, H, W]. A patch counts if any of its pixels does.
    """
    if _known.real_images is None:
        return original(self, pixel_values, pixel_attention_mask, **kwargs)
    pixels, mask = _select_real(self, pixel_values, pixel_attention_mask)
    kwargs = {**kwargs, "return_dict": True}
    patches = _count_pixels(self, mask) > 0
    outputs = self.vision_model(
        pixel_values=pixels, patch_attention_mask=patches, **kwargs
    )
    return _with_features(outputs, self.connector(outputs.last_hidden_state))


def _select_real(
    self: Any, pixel_values: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Traced. The real images [R, C, H, W], the rows' one after the other, and their
    masks [R, H, W].
    """
    assert _known.real_images is not None
    numbers = _known.real_images.flatten().nonzero()[:, 0].tolist()
    pixels = pixel_values.to(dtype=self.dtype).flatten(0, 1)[numbers]
    if mask is None:
        return pixels, torch.ones(len(numbers), *pixels.shape[2:], dtype=torch.bool)
    return pixels, mask.flatten(0, 1)[numbers]


def _count_pixels(self: Any, mask: torch.Tensor) -> torch.Tensor:
    """How many pixels of each patch [R, H / P, W / P] the mask [R, H, W] has."""
    side = self.config.vision_config.patch_size
    return mask.unfold(1, side, side).unfold(2, side, side).sum(dim=(-1, -2))


def _with_features(outputs: Any, features: torch.Tensor) -> Any:
    """The encoder's outputs with the features [R, T, D] of each row's images in one
    tensor.
    """
    assert _known.real_images is not None
    counts = _known.real_images.sum(dim=1).tolist()
    outputs.pooler_output = [
        part.reshape(-1, part.shape[-1]) for part in features.split(counts)
    ]
    return outputs
