"""The scale of LoRA adapters that a call of a diffusers model may name.

diffusers 0.36 has this in each model's forward, and later releases in a decorator.
"""

import functools
from collections.abc import Callable
from typing import Any

from diffusers.utils import logging
from diffusers.utils.constants import USE_PEFT_BACKEND
from diffusers.utils.peft_utils import scale_lora_layers, unscale_lora_layers

logger = logging.get_logger(__name__)


def with_lora_scale(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A model's forward that scales its adapters by `attention_kwargs["scale"]` for the
    time of the call.
    """

    @functools.wraps(forward)
    def scaled(self: Any, *args: Any, **kwargs: Any) -> Any:
        options = dict(kwargs.get("attention_kwargs") or {})
        scale = options.pop("scale", 1.0)
        if kwargs.get("attention_kwargs") is not None:
            kwargs["attention_kwargs"] = options
        if not USE_PEFT_BACKEND:
            if scale != 1.0:
                logger.warning("attention_kwargs['scale'] has no effect without PEFT")
            return forward(self, *args, **kwargs)
        scale_lora_layers(self, scale)
        try:
            return forward(self, *args, **kwargs)
        finally:
            unscale_lora_layers(self, scale)

    return scaled
