"""A HunyuanVideo-1.5 pipeline of diffusers' and transformers' own classes, at sizes that a CPU runs in seconds.

`build_pipeline` makes one with random weights, `load_pipeline` loads one from a directory.
"""

import json
from pathlib import Path
from typing import Any

import torch
from diffusers.guiders.classifier_free_guidance import ClassifierFreeGuidance
from diffusers.models.autoencoders.autoencoder_kl_hunyuanvideo15 import AutoencoderKLHunyuanVideo15
from diffusers.models.transformers.transformer_hunyuan_video15 import HunyuanVideo15Transformer3DModel
from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import HunyuanVideo15Pipeline
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from transformers import (
    ByT5Tokenizer,
    Qwen2_5_VLTextConfig,
    Qwen2_5_VLTextModel,
    Qwen2Tokenizer,
    T5Config,
    T5EncoderModel,
)

from recipes.hunyuan_video.clips import words
from recipes.llama.tokenizer import byte_symbols

CHECKPOINT = Path(__file__).parent / "checkpoint"
SETTINGS_FILE = "pipeline_settings.json"
SYSTEM_MESSAGE = "Describe the video."
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# A space before the text, so that every word of a prompt is written in the one way that has a token.
CHAT_TEMPLATE = (
    "{% for message in messages %}" + START + " {{ message['content'] }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}" + START + "{% endif %}"
)
LATENT_CHANNELS = 8
SHIFT = 4.0  # most steps at high noise: there it is decided where the shape is and which way it goes
TEXT_WIDTH, GLYPH_WIDTH, IMAGE_WIDTH = 32, 16, 16
# What the pipeline keeps as attributes of its own and no configuration file holds.
LENGTHS = {"tokenizer_max_length": 32, "tokenizer_2_max_length": 16, "vision_num_semantic_tokens": 8}


def build_tokenizer() -> Qwen2Tokenizer:
    """Byte-level BPE with a token for each word of the captions; any other text falls apart into bytes."""
    space = byte_symbols()[ord(" ")]
    vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    merges: list[Any] = []
    for word in [*words(), "Describe", "video"]:
        grown = space
        for letter in word:
            if grown + letter not in vocabulary:
                merges.append((grown, letter))
                vocabulary[grown + letter] = len(vocabulary)
            grown += letter
    for name in (PAD, START, END):
        vocabulary[name] = len(vocabulary)
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=merges, padding_side="right")
    tokenizer.add_special_tokens({"additional_special_tokens": [START, END]})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_transformer() -> HunyuanVideo15Transformer3DModel:
    """Three blocks of width 96; 4 heads, so that up to 4 devices can share it."""
    model = HunyuanVideo15Transformer3DModel(
        in_channels=2 * LATENT_CHANNELS + 1,
        out_channels=LATENT_CHANNELS,
        num_attention_heads=4,
        attention_head_dim=24,
        num_layers=3,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        patch_size=2,
        patch_size_t=1,
        text_embed_dim=TEXT_WIDTH,
        text_embed_2_dim=GLYPH_WIDTH,
        image_embed_dim=IMAGE_WIDTH,
        rope_axes_dim=(8, 8, 8),
        target_size=48,
        task_type="t2v",
    )
    # Four of the five million weights, for quoted text, which no caption has: ones and zeros take no room in git.
    torch.nn.init.eye_(model.context_embedder_2.linear_2.weight)
    return model


def build_vae() -> AutoencoderKLHunyuanVideo15:
    """One latent for 4 x 4 pixels of 4 frames."""
    widths: Any = (8, 16, 16)
    return AutoencoderKLHunyuanVideo15(
        latent_channels=LATENT_CHANNELS,
        block_out_channels=widths,
        layers_per_block=1,
        spatial_compression_ratio=4,
        temporal_compression_ratio=4,
        scaling_factor=1.0,
    )


def build_text_encoder(vocabulary: int) -> Qwen2_5_VLTextModel:
    """Three layers, because the pipeline reads what the last but two gives."""
    config = Qwen2_5_VLTextConfig(
        vocab_size=vocabulary,
        hidden_size=TEXT_WIDTH,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 1, 1]},
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        use_cache=False,
    )
    model = Qwen2_5_VLTextModel(config)
    with torch.no_grad():  # a word stays itself whatever is beside it, since nobody trains the layers
        model.embed_tokens.weight.mul_(50)
    return model


def build_text_encoder_2() -> T5EncoderModel:
    """For the quoted words of a prompt."""
    return T5EncoderModel(
        T5Config(
            vocab_size=264,  # 256 bytes and 3 special tokens, rounded up
            d_model=GLYPH_WIDTH,
            d_kv=8,
            d_ff=32,
            num_layers=1,
            num_heads=2,
            feed_forward_proj="gated-gelu",
        )
    )


def template_length(tokenizer: Any, system_message: str) -> int:
    """How many tokens the chat template puts before the prompt, the opening of the user's turn included."""
    system = [{"role": "system", "content": system_message}]
    ids = tokenizer.apply_chat_template(system, add_generation_prompt=True, tokenize=True, return_dict=True)
    return len(ids["input_ids"])


def apply_settings(pipeline: Any, settings: dict[str, Any]) -> Any:
    """The pipeline, with these attributes of its own set, and its VAE taking one clip at a time.

    The mask of the VAE's attention fits no batch, so several prompts in one call need the slicing.
    """
    pipeline.vae.enable_slicing()
    for name, value in settings.items():
        setattr(pipeline, name, value)
    return pipeline


def build_pipeline(seed: int = 0) -> HunyuanVideo15Pipeline:
    """The tiny pipeline with random weights, float32, on the CPU; the same seed gives the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokenizer = build_tokenizer()
        pipeline = HunyuanVideo15Pipeline(
            text_encoder=build_text_encoder(-(-len(tokenizer) // 8) * 8).eval(),
            tokenizer=tokenizer,
            transformer=build_transformer().eval(),
            vae=build_vae().eval(),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=SHIFT),
            text_encoder_2=build_text_encoder_2().eval(),
            tokenizer_2=ByT5Tokenizer(extra_ids=0),
            guider=ClassifierFreeGuidance(guidance_scale=3.0),
        )
    return apply_settings(pipeline, settings_of(tokenizer))


def settings_of(tokenizer: Any) -> dict[str, Any]:
    """The tiny pipeline's attributes by name; `save_pipeline` writes them beside the checkpoint."""
    start = template_length(tokenizer, SYSTEM_MESSAGE)
    return LENGTHS | {"system_message": SYSTEM_MESSAGE, "prompt_template_encode_start_idx": start}


def save_pipeline(pipeline: Any, directory: Path) -> None:
    """Write the pipeline in diffusers' layout, and its attributes in a small file beside it."""
    pipeline.save_pretrained(directory)
    text = json.dumps(settings_of(pipeline.tokenizer), indent=2) + "\n"
    (directory / SETTINGS_FILE).write_text(text, encoding="utf-8")


def load_pipeline(directory: Path = CHECKPOINT, dtype: torch.dtype = torch.float32) -> HunyuanVideo15Pipeline:
    """A pipeline from a directory in diffusers' layout; a settings file beside it sets the pipeline's attributes."""
    pipeline = HunyuanVideo15Pipeline.from_pretrained(directory, dtype=dtype, local_files_only=True)
    file = directory / SETTINGS_FILE
    settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return apply_settings(pipeline, settings)
