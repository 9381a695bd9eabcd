"""Whether a class of models defines something in place of transformers' general
`generate`.
"""

from typing import Any

import torch
from transformers import GenerationMixin

from tpuport.internals.transformers_internals import GENERATE, has_loop_of_its_own


def has_class_generate(model: Any) -> bool:
    """Whether a model's class defines a `generate`, or the loop behind it."""
    generate = getattr(type(model), "generate", None)
    is_general = generate is None or generate is vars(GenerationMixin)["generate"]
    # Not every class with one, such as SpeechT5's, is derived from `GenerationMixin`.
    defines = not is_general or has_class_loop(type(model))
    return isinstance(model, torch.nn.Module) and defines


def has_class_loop(cls: type) -> bool:
    """Whether a class of models has a loop of its own behind `generate`, or inputs or
    processors of its own in transformers' loop.
    """
    return not GENERATE.works() or has_loop_of_its_own(cls)
