"""Port a vision-language model and ask about images: `python -m recipes.vision_language --image photo.jpg`.

Uses only the public API of tpuport; README.md beside this file says what is special about these models.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import tpuport
from recipes.command import at_least, run_command
from recipes.generation_command import GenerationRecipe, run_recipe, tokens_of
from recipes.vision_language import shapes
from recipes.vision_language.processors import read_processor

# Of other sizes, so that one prompt of the batch has fewer tokens.
EXAMPLES = {
    "wide.png": shapes.Scene((80, 48), (shapes.Shape("red", "square"), shapes.Shape("blue", "square"))),
    "high.png": shapes.Scene((48, 64), (shapes.Shape("green", "triangle"),)),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The recipe's own options."""
    add = parser.add_argument
    add("--prompt", action="append", help="a question about each image, or one about all of them")
    add("--max-new-tokens", type=at_least(1), default=64, help="tokens to generate per row (default 64)")


def write_examples(output: Path) -> list[Path]:
    """Two pictures as PNG files."""
    output.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    files = [output / name for name in EXAMPLES]
    for file, scene in zip(files, EXAMPLES.values(), strict=True):
        shapes.draw(scene, generator).save(file)
    return files


def read_image(file: Path) -> Any:
    """The image in red, green and blue.

    Raises:
        PortError: the file does not exist, or is not an image that Pillow reads.
    """
    from PIL import Image

    try:
        return Image.open(file).convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        what = f"the image cannot be read: {error}"
        raise tpuport.PortError(what, where=str(file), fix="give a PNG or JPEG file") from error


def check_inputs(arguments: argparse.Namespace) -> None:
    """Raise PortError for an image that cannot be read, and where questions are not those of the images."""
    for file in arguments.image:
        read_image(file)
    arguments.prompt = arguments.prompt or [shapes.WHAT]
    questions, images = len(arguments.prompt), len(arguments.image)
    if questions not in (1, images):
        what = f"{questions} questions about {images} images"
        fix = "give --prompt once, or once for each --image"
        raise tpuport.PortError(what, where="--prompt", fix=fix)


def prepare(processor: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of the model's `generate`: tokens padded on the left, pixels, and what says how they are cut."""
    images = [read_image(file) for file in arguments.image]
    questions = arguments.prompt * (len(images) // len(arguments.prompt))
    texts = [_ask(processor, question) for question in questions]
    # A list for each row: some processors take several images of a row.
    inputs = processor(text=texts, images=[[image] for image in images], padding=True, return_tensors="pt")
    return {**inputs, "max_new_tokens": arguments.max_new_tokens, "do_sample": False}


def _ask(processor: Any, question: str) -> str:
    """The text of a prompt with one image, as the checkpoint's model was trained to see it."""
    if getattr(processor, "chat_template", None) is None:
        return f"{getattr(processor, 'image_token', '')}{question}"
    content = [{"type": "image"}, {"type": "text", "text": question}]
    return processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)


def describe(processor: Any, call: dict[str, Any], result: Any) -> list[str]:
    """An answer for each image."""
    import torch

    tokens, prompt = tokens_of(result), call["input_ids"]
    if torch.equal(tokens[:, : prompt.shape[1]], prompt):  # encoder-decoders return the answer alone
        tokens = tokens[:, prompt.shape[1] :]
    counts = call["attention_mask"].sum(-1).tolist()
    texts = processor.batch_decode(tokens, skip_special_tokens=True)
    return [
        f"image {row + 1}, {count} of {prompt.shape[1]} columns: {text.strip()}"
        for row, (count, text) in enumerate(zip(counts, texts, strict=True))
    ]


def heads(config: dict[str, Any]) -> int:
    """The key/value heads of the part that writes."""
    text = config.get("text_config", config)
    return int(text.get("num_key_value_heads") or text.get("num_attention_heads") or 0)


RECIPE = GenerationRecipe(
    name="vision_language",
    model_class="AutoModelForImageTextToText",
    model_types=None,
    option="image",
    add_options=add_options,
    write_examples=write_examples,
    check_inputs=check_inputs,
    read_processor=read_processor,
    prepare=prepare,
    describe=describe,
    heads=heads,
)


if __name__ == "__main__":
    run_command(lambda: run_recipe(RECIPE))
