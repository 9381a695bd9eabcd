"""Trains the tiny Qwen2-VL of this recipe with plain torch on the CPU, and saves a checkpoint.

    python -m recipes.vision_language.train --out recipes/vision_language/checkpoint

Shapes: `B` pictures in a step, `T` tokens of a picture, its question and the answer.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
)

from recipes.llama.tokenizer import BOS_ID, EOS, EOS_ID, PAD_ID, VOCAB_SIZE, build_tokenizer
from recipes.llama.train import optimizers, rate
from recipes.vision_language.processors import for_images_alone
from recipes.vision_language.shapes import HOW_MANY, WHAT, draw, invent

CONTEXT = 512
PATCH = 8  # pixels; a token is 2 x 2 patches
SIZES = (48, 64, 80)  # pixels
VISION_TOKENS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
TEMPLATE = (
    "{% for message in messages %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endfor %}{{ '\\n' }}"
)


def build_processor() -> Any:
    """A token for each byte and for 16 x 16 pixels; a larger picture than 128 x 128 is made smaller."""
    tokenizer = build_tokenizer(CONTEXT)
    tokenizer.add_special_tokens({"additional_special_tokens": VISION_TOKENS})
    images = Qwen2VLImageProcessorPil(
        patch_size=PATCH, size={"shortest_edge": 32 * 32, "longest_edge": 128 * 128}
    )
    return for_images_alone(Qwen2VLProcessor)(images, tokenizer, chat_template=TEMPLATE)


def model_config(tokenizer: Any) -> Qwen2VLConfig:
    """0.3 million weights; 4 heads, so that up to 4 devices can share it."""
    start, end, image, video = tokenizer.convert_tokens_to_ids(VISION_TOKENS)
    return Qwen2VLConfig(
        text_config={
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 64,
            "intermediate_size": 192,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": CONTEXT,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]},
            "bos_token_id": BOS_ID,
            "eos_token_id": EOS_ID,
            "pad_token_id": PAD_ID,
        },
        vision_config={
            "depth": 2,
            "embed_dim": 64,
            "hidden_size": 64,
            "num_heads": 4,
            "mlp_ratio": 2,
            "patch_size": PATCH,
        },
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
    )


def lesson(processor: Any, batch: int, generator: np.random.Generator) -> dict[str, torch.Tensor]:
    """The model's inputs for pictures by chance, with a question of each and its answer."""
    texts, images, answers = [], [], []
    for _ in range(batch):
        width, height = generator.choice(SIZES, 2).tolist()
        scene = invent((width, height), generator)
        question = WHAT if generator.random() < 0.85 else HOW_MANY
        answers.append(scene.answer(question) + EOS)
        content = [{"type": "image"}, {"type": "text", "text": question}]
        texts.append(processor.apply_chat_template([{"role": "user", "content": content}]) + answers[-1])
        images.append(draw(scene, generator))
    inputs = processor(text=texts, images=images, padding=True, return_tensors="pt")
    labels_BT = torch.full_like(inputs["input_ids"], -100)
    for row, answer in enumerate(answers):
        # Padded on the left, so that answers are at the end of their rows.
        length = len(processor.tokenizer(answer)["input_ids"])
        labels_BT[row, -length:] = inputs["input_ids"][row, -length:]
    return {**inputs, "labels": labels_BT}


def train(steps: int, batch: int, seed: int) -> tuple[Qwen2VLForConditionalGeneration, Any]:
    """A model trained for `steps` steps of `batch` pictures; the same seed gives the same model."""
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    processor = build_processor()
    model = Qwen2VLForConditionalGeneration(model_config(processor.tokenizer)).train()
    tools = optimizers(model)
    schedules = [torch.optim.lr_scheduler.LambdaLR(tool, lambda step: rate(step, steps)) for tool in tools]
    started = time.perf_counter()
    for step in range(steps):
        loss = model(**lesson(processor, batch, generator)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for tool, schedule in zip(tools, schedules, strict=True):
            tool.step()
            tool.zero_grad()
            schedule.step()
        if step % 50 == 49 or step == steps - 1:
            seconds = time.perf_counter() - started
            print(f"step {step + 1}/{steps}  loss {loss.item():.4f}  {seconds:.0f} s", flush=True)
    return model.eval(), processor


def save(model: Qwen2VLForConditionalGeneration, processor: Any, directory: Path) -> None:
    """Write float16 weights, configurations and the processor for `transformers` to load."""
    model.generation_config = GenerationConfig(
        pad_token_id=PAD_ID, bos_token_id=BOS_ID, eos_token_id=EOS_ID, max_new_tokens=64
    )
    model.half().save_pretrained(directory)
    processor.save_pretrained(directory)


def main() -> None:
    """Train and save, by the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m recipes.vision_language.train", description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=12, help="pictures in a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "checkpoint")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    save(*train(arguments.steps, arguments.batch, arguments.seed), arguments.out)
    print(f"saved in {arguments.out}")


if __name__ == "__main__":
    main()
