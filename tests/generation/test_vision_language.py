"""Vision-language models: greedy decoding equals transformers' `generate` on the CPU."""

import copy
from typing import Any

import jax
import pytest
import torch
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MllamaConfig,
    MllamaForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

import tpuport
from tpuport.errors import PortError
from tpuport.generation import decoder_for

# Of models that ask for int64, where `tpuport.enable` is not in force.
pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
NEW = 8
_IMAGE = 100
_TEXT: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
OPTIONS: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}


def with_large_weights(model: Any) -> Any:
    """The model with weights large enough that greedy decoding has clear winners, and images count."""
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
    model.tie_weights()
    return model.eval()


def port(model: Any) -> Any:
    """A ported copy, on one device."""
    return tpuport.port(copy.deepcopy(model), mesh=tpuport.create_mesh(devices=jax.devices()[:1]))


@pytest.fixture(scope="module")
def llava() -> tuple[Any, Any]:
    """A LLaVA on the host and the same ported: 16 tokens an image of 16 x 16."""
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4
    )  # fmt: skip
    config = LlavaConfig(vision_config=vision, text_config=LlamaConfig(**_TEXT), image_token_id=_IMAGE)
    model = with_large_weights(LlavaForConditionalGeneration(config))
    return model, port(model)


@pytest.fixture(scope="module")
def batch() -> dict[str, torch.Tensor]:
    """Two prompts of 26 and 22 tokens, 16 of each for its image; the second is padded on the left."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 99, (2, 26), generator=generator)
    ids[:, 6:22] = _IMAGE
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    pixels = torch.randn(2, 3, 16, 16, generator=generator)
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask, "pixel_values": pixels}


def test_the_tokens_of_transformers(llava: tuple[Any, Any], batch: dict[str, torch.Tensor]) -> None:
    reference, ported = llava
    expected = reference.generate(**batch, **OPTIONS)
    assert torch.equal(ported.generate(**batch, **OPTIONS), expected)
    # A processor's result as it is.
    assert torch.equal(tpuport.generate(ported, batch, **OPTIONS), expected)
    pixels = batch["pixel_values"]
    by_name = tpuport.generate(
        ported, batch["input_ids"], batch["attention_mask"], pixel_values=pixels, **OPTIONS
    )
    assert torch.equal(by_name, expected)


def test_other_images_compile_nothing(llava: tuple[Any, Any], batch: dict[str, torch.Tensor]) -> None:
    reference, ported = llava
    ported.generate(**batch, **OPTIONS)
    decoder = decoder_for(ported)
    before = decoder.prefill.compilations, decoder.advance.compilations
    other = {**batch, "pixel_values": batch["pixel_values"].flip(0)}
    expected = reference.generate(**other, **OPTIONS)
    assert not torch.equal(expected, reference.generate(**batch, **OPTIONS))
    assert torch.equal(ported.generate(**other, **OPTIONS), expected)
    assert (decoder.prefill.compilations, decoder.advance.compilations) == before


def test_plain_values_that_the_model_reads(llava: tuple[Any, Any], batch: dict[str, torch.Tensor]) -> None:
    reference, ported = llava
    results = []
    for layer in (-1, -2):
        expected = reference.generate(**batch, **OPTIONS, vision_feature_layer=layer)
        assert torch.equal(ported.generate(**batch, **OPTIONS, vision_feature_layer=layer), expected)
        results.append(expected)
    assert not torch.equal(*results), "the value changes nothing"
    with pytest.raises(PortError, match="pixel_values is not a tensor"):
        ported.generate(**{**batch, "pixel_values": "a.png"}, **OPTIONS)


@pytest.mark.slow  # test_beam_search.py, with the images of rows above
def test_beams_have_the_image_of_their_prompt(llava: tuple[Any, Any], batch: dict[str, torch.Tensor]) -> None:
    reference, ported = llava
    expected = reference.generate(**batch, **OPTIONS, num_beams=2)
    assert torch.equal(ported.generate(**batch, **OPTIONS, num_beams=2), expected)


def test_halves_of_pixels(llava: tuple[Any, Any], batch: dict[str, torch.Tensor]) -> None:
    """As a checkpoint in bfloat16 wants them, a dtype that NumPy lacks."""
    reference, ported = llava
    halves = {**batch, "pixel_values": batch["pixel_values"].to(torch.bfloat16)}
    assert torch.equal(ported.generate(**halves, **OPTIONS), reference.generate(**halves, **OPTIONS))


def test_a_missing_image_is_an_error(llava: tuple[Any, Any], batch: dict[str, torch.Tensor]) -> None:
    with pytest.raises(PortError, match="do not fit its images"):
        llava[1].generate(**{**batch, "pixel_values": batch["pixel_values"][:1]}, **OPTIONS)


def test_guidance_is_refused(llava: tuple[Any, Any], batch: dict[str, torch.Tensor]) -> None:
    with pytest.raises(PortError, match="tokens alone"):
        llava[1].generate(**batch, **OPTIONS, guidance_scale=2.0)


@pytest.fixture(scope="module")
def qwen() -> tuple[Any, Any]:
    """A Qwen2-VL on the host and the same ported: a token for 2 x 2 patches, and positions of three axes."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2, "patch_size": 4}
    config = Qwen2VLConfig(
        text_config={**_TEXT, "rope_parameters": rope}, vision_config=vision, image_token_id=_IMAGE,
        video_token_id=101, vision_start_token_id=102, vision_end_token_id=103,
    )  # fmt: skip
    model = with_large_weights(Qwen2VLForConditionalGeneration(config))
    return model, port(model)


def _grid_batch(grids: list[list[int]]) -> dict[str, torch.Tensor]:
    """Prompts of 26 columns with an image of each grid [frames, height, width in patches], padded on the left."""
    generator = torch.Generator().manual_seed(1)
    grid = torch.tensor(grids)
    patches = grid.prod(-1)
    ids = torch.randint(3, 99, (len(grids), 26), generator=generator)
    mask = torch.ones_like(ids)
    for row, count in enumerate(patches // 4):
        ids[row, 5], ids[row, 6 : 6 + count] = 102, _IMAGE
        mask[row, : 2 * row] = 0
    pixels = torch.randn(int(patches.sum()), 3 * 2 * 4 * 4, generator=generator)
    return {
        "input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask, "pixel_values": pixels,
        "image_grid_thw": grid, "mm_token_type_ids": (ids == _IMAGE).long(),
    }  # fmt: skip


@pytest.mark.parametrize(
    "grids", [[[1, 4, 8], [1, 8, 4]], pytest.param([[1, 4, 8], [1, 4, 4]], marks=pytest.mark.slow)], ids=str
)
def test_positions_along_the_axes_of_an_image(qwen: tuple[Any, Any], grids: list[list[int]]) -> None:
    reference, ported = qwen
    batch = _grid_batch(grids)
    assert torch.equal(ported.generate(**batch, **OPTIONS), reference.generate(**batch, **OPTIONS))
    # Other pixels of a known grid need no other program.
    decoder = decoder_for(ported)
    before = decoder.prefill.compilations, decoder.advance.compilations
    batch["pixel_values"] = batch["pixel_values"].flip(0)
    expected = reference.generate(**batch, **OPTIONS)
    assert torch.equal(ported.generate(**batch, **OPTIONS), expected)
    assert (decoder.prefill.compilations, decoder.advance.compilations) == before


@pytest.mark.slow  # rows without an image are those of every language model
def test_text_alone(qwen: tuple[Any, Any]) -> None:
    reference, ported = qwen
    batch = _grid_batch([[1, 4, 8], [1, 8, 4]])
    text = {name: batch[name] for name in ("input_ids", "attention_mask")}
    text["input_ids"] = text["input_ids"].masked_fill(text["input_ids"] == _IMAGE, 7)
    assert torch.equal(ported.generate(**text, **OPTIONS), reference.generate(**text, **OPTIONS))


def _assert_equal_and_seen(reference: Any, ported: Any, batch: dict[str, Any]) -> None:
    """The tokens of transformers, which other pixels change."""
    expected = reference.generate(**batch, **OPTIONS)
    assert torch.equal(ported.generate(**batch, **OPTIONS), expected)
    name = "pixel_values" if "pixel_values" in batch else "pixel_values_videos"
    other = {**batch, name: batch[name].flip(-1)}
    assert not torch.equal(reference.generate(**other, **OPTIONS), expected)


@pytest.mark.slow  # the images of rows above, and test_sharded.py
def test_a_video_in_each_row_on_a_mesh(qwen: tuple[Any, Any]) -> None:
    reference, _ = qwen
    mesh = tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4])
    ported = tpuport.port(copy.deepcopy(reference), mesh=mesh)
    generator = torch.Generator().manual_seed(2)
    grid = torch.tensor([[2, 4, 4], [2, 4, 2]])
    ids = torch.randint(3, 99, (2, 20), generator=generator)
    mask = torch.ones_like(ids)
    for row, count in enumerate(grid.prod(-1) // 4):
        ids[row, 5 : 5 + count] = 101
        mask[row, : 2 * row] = 0
    pixels = torch.randn(int(grid.prod(-1).sum()), 3 * 2 * 4 * 4, generator=generator)
    batch = {
        "input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask, "pixel_values_videos": pixels,
        "video_grid_thw": grid, "mm_token_type_ids": (ids == 101).long() * 2,
    }  # fmt: skip
    _assert_equal_and_seen(reference, ported, batch)


@pytest.mark.slow  # the grids of images above
def test_sizes_of_images_decide_how_features_are_cut() -> None:
    vision = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "image_size": 16, "patch_size": 4, "model_type": "pixtral",
    }  # fmt: skip
    text = {**_TEXT, "model_type": "mistral"}
    config = Mistral3Config(
        vision_config=vision, text_config=text, image_token_id=_IMAGE, spatial_merge_size=2
    )
    model = with_large_weights(Mistral3ForConditionalGeneration(config))
    generator = torch.Generator().manual_seed(3)
    # Two images in the first row and one in the second, of 16 x 16 and 16 x 8: a token for 8 x 8 pixels.
    ids = torch.randint(3, 99, (2, 16), generator=generator)
    ids[0, 2:6], ids[0, 8:10], ids[1, 8:12] = _IMAGE, _IMAGE, _IMAGE
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    batch = {
        "input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask,
        "pixel_values": torch.randn(3, 3, 16, 16, generator=generator),
        "image_sizes": torch.tensor([[16, 16], [16, 8], [16, 16]]),
    }  # fmt: skip
    _assert_equal_and_seen(model, port(model), batch)


@pytest.mark.slow  # the sizes of images above are in rows of their own, too
def test_rows_with_fewer_images_have_some_of_zeros() -> None:
    vision = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "image_size": 16, "patch_size": 4,
    }  # fmt: skip
    text = {**_TEXT, "model_type": "llama"}
    config = SmolVLMConfig(vision_config=vision, text_config=text, image_token_id=_IMAGE, scale_factor=2)
    model = with_large_weights(SmolVLMForConditionalGeneration(config))
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(3, 99, (2, 16), generator=generator)
    ids[0, 2:6], ids[0, 8:12], ids[1, 8:12] = _IMAGE, _IMAGE, _IMAGE
    pixels = torch.randn(2, 2, 3, 16, 16, generator=generator)
    pixels[1, 1] = 0
    valid = torch.ones(2, 2, 16, 16, dtype=torch.bool)
    valid[0, 1, :, 8:] = False
    batch = {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels,
        "pixel_attention_mask": valid,
    }  # fmt: skip
    _assert_equal_and_seen(model, port(model), batch)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.slow  # sizes of images, which decide how features are cut, above
def test_mllamas_layers_that_attend_to_images(masked: bool) -> None:
    text = _TEXT | {"num_hidden_layers": 2, "cross_attention_layers": [1], "vocab_size": 120}
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 10_000.0}
    vision = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_global_layers": 1,
        "attention_heads": 4, "image_size": 16, "patch_size": 4, "vision_output_dim": 64, "max_num_tiles": 2,
        "intermediate_layers_indices": [0], "supported_aspect_ratios": [[1, 1], [1, 2]],
    }  # fmt: skip
    model = with_large_weights(
        MllamaForConditionalGeneration(MllamaConfig(vision_config=vision, text_config=text))
    )
    gates = [parameter for name, parameter in model.named_parameters() if name.endswith("gate")]
    for gate in gates:
        gate.data.fill_(1.0)
    ids = torch.randint(3, 99, (2, 10))
    inputs = {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.randn(2, 2, 2, 3, 16, 16),
        "aspect_ratio_ids": torch.tensor([[1, 2], [2, 1]]), "aspect_ratio_mask": torch.ones(2, 2, 2, dtype=torch.long),
    }  # fmt: skip
    if masked:
        # From the third token on, of each row another of its images.
        mask = torch.zeros(2, 10, 2, 2, dtype=torch.long)
        mask[0, 2:, 0] = mask[1, 2:, 1] = 1
        inputs["cross_attention_mask"] = mask
    ported = port(model)
    expected = model.generate(**inputs, **OPTIONS)
    assert torch.equal(ported.generate(**inputs, **OPTIONS), expected)
    others = inputs | {"pixel_values": inputs["pixel_values"].flip(1)}
    assert not torch.equal(model.generate(**others, **OPTIONS), expected)
    assert torch.equal(ported.generate(**others, **OPTIONS), model.generate(**others, **OPTIONS))
    decoder = decoder_for(ported)
    assert (decoder.prefill.compilations, decoder.advance.compilations) == (1, 1)
