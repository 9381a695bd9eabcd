"""The processor of a checkpoint: what makes tokens and pixels of texts and images."""

import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any

import tpuport

_CONFIGURATIONS = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


def for_images_alone(processor_class: Any) -> Any:
    """The class without its part for videos, which transformers makes with torchvision only.

    Args:
        processor_class: one like Qwen2-VL's, made of an image processor, a tokenizer, and the part for videos.
    """

    # transformers reads off this code which parts a processor has.
    def initialize(
        self: Any, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None
    ) -> None:
        processor_class.__init__(self, image_processor, tokenizer, None, chat_template=chat_template)

    return type(processor_class.__name__, (processor_class,), {"__init__": initialize})


def choose_class(checkpoint: Path) -> Any:
    """`AutoProcessor`, or the checkpoint's own class for images alone where that is what can be made."""
    import transformers

    named = getattr(transformers, str(processor_class_name(checkpoint)), None)
    if named is None or importlib.util.find_spec("torchvision") is not None:
        return transformers.AutoProcessor
    names = [*inspect.signature(named.__init__).parameters][1:5]
    if names == ["image_processor", "tokenizer", "video_processor", "chat_template"]:
        return for_images_alone(named)
    return transformers.AutoProcessor


def processor_class_name(checkpoint: Path) -> str | None:
    """The class that the checkpoint's configurations name."""
    for name in _CONFIGURATIONS:
        file = checkpoint / name
        if file.is_file():
            processor_class = json.loads(file.read_text(encoding="utf-8")).get("processor_class")
            if processor_class is not None:
                return str(processor_class)
    return None


def read_processor(checkpoint: Path) -> Any:
    """The checkpoint's processor, which pads on the left: decoding continues after the last column.

    Raises:
        PortError: transformers cannot make it.
    """
    try:
        processor = choose_class(checkpoint).from_pretrained(checkpoint, local_files_only=True)
        tokenizer = processor.tokenizer
    except (OSError, ValueError, ImportError, AttributeError, TypeError) as error:
        raise tpuport.PortError(
            f"the processor cannot be read: {str(error).strip().splitlines()[0]}",
            where=str(checkpoint),
            fix="put all files of the processor and its tokenizer into the checkpoint's directory: "
            "processor.save_pretrained(directory), or copy them from the checkpoint's source",
        ) from error
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return processor
