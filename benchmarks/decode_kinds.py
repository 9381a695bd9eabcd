"""Models of other kinds for `benchmarks.decode`: an encoder-decoder, and one that reads an image beside its prompt."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

import tpuport

VOCABULARY = 32_000
IMAGE_TOKEN = VOCABULARY - 1
IMAGE_SIZE, PATCH_SIZE = 112, 14


def encoder_decoder(prompt_length: int) -> tuple[Any, dict[str, torch.Tensor]]:
    """A random T5 of eight layers on each side, and a source text [1, prompt_length]."""
    options: dict[str, Any] = {
        "vocab_size": VOCABULARY, "d_model": 512, "d_kv": 64, "d_ff": 1536, "num_layers": 8, "num_heads": 8,
        "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": None, "tie_word_embeddings": False,
    }  # fmt: skip
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(T5Config(**options)).eval()
    model.generation_config.eos_token_id = None
    return model, {"input_ids": torch.randint(3, VOCABULARY, (1, prompt_length))}


def vision_language(prompt_length: int) -> tuple[Any, dict[str, torch.Tensor]]:
    """A random LLaVA with the decoder of the first table, one image, and a prompt [1, patches + prompt_length]."""
    text = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, max_position_embeddings=2048, tie_word_embeddings=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    vision = CLIPVisionConfig(
        hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=4,
        image_size=IMAGE_SIZE, patch_size=PATCH_SIZE, projection_dim=256,
    )  # fmt: skip
    torch.manual_seed(0)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN)
    model = LlavaForConditionalGeneration(config).eval()
    words = torch.randint(3, IMAGE_TOKEN, (1, prompt_length))
    patches = torch.full((1, (IMAGE_SIZE // PATCH_SIZE) ** 2), IMAGE_TOKEN)
    inputs = {
        "input_ids": torch.cat([patches, words], dim=1),
        "pixel_values": torch.randn(1, 3, IMAGE_SIZE, IMAGE_SIZE),
    }
    return model, inputs


KINDS: dict[str, Callable[[int], tuple[Any, dict[str, torch.Tensor]]]] = {
    "encoder-decoder (T5)": encoder_decoder,
    "image and text (LLaVA)": vision_language,
}


def rivals(kind: str, prompt_length: int, new_tokens: int) -> dict[str, Callable[[], np.ndarray]]:
    """transformers' `generate` and tpuport's, of the same weights and inputs."""
    model, inputs = KINDS[kind](prompt_length)
    ported = tpuport.port(copy.deepcopy(model))
    options: dict[str, Any] = {"max_new_tokens": new_tokens, "do_sample": False}
    return {
        "torch": lambda: model.generate(**inputs, **options).numpy(),
        "tpuport": lambda: ported.generate(**inputs, **options).numpy(),
    }
