"""What the recipe refuses, in a sentence, before it reads anything large."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from recipes import checks, pipeline_checks
from recipes.hunyuan_video import __main__ as recipe
from recipes.hunyuan_video import request
from tpuport import PortError

WIDTHS = {"": 32, "_2": 16}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration files of a checkpoint without weights."""
    folder = tmp_path_factory.mktemp("checkpoint")
    files: dict[str, dict[str, Any]] = {
        "model_index.json": {"_class_name": request.PIPELINE},
        "vae/config.json": {"spatial_compression_ratio": 8, "temporal_compression_ratio": 4},
        "transformer/config.json": {
            "patch_size": 2, "text_embed_dim": 32, "text_embed_2_dim": 16, "num_attention_heads": 4
        },
    }  # fmt: skip
    for name, held in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(held))
    return folder


def _embeddings() -> dict[str, torch.Tensor]:
    held: dict[str, torch.Tensor] = {}
    for sign in ("", "negative_"):
        for end, width in WIDTHS.items():
            held[f"{sign}prompt_embeds{end}"] = torch.zeros(2, 5, width)
            held[f"{sign}prompt_embeds_mask{end}"] = torch.ones(2, 5)
    return held


def _read(
    checkpoint: Path, folder: Path, held: dict[str, torch.Tensor], guided: bool = True
) -> dict[str, torch.Tensor]:
    save_file(held, folder / "embeds.safetensors")
    return request.read_embeddings(folder / "embeds.safetensors", checkpoint, guided)


def test_embeddings_with_their_masks_are_read(checkpoint: Path, tmp_path: Path) -> None:
    assert set(_read(checkpoint, tmp_path, _embeddings())) == set(_embeddings())
    found = _read(checkpoint, tmp_path, _embeddings(), guided=False)
    assert set(found) == {"prompt_embeds", "prompt_embeds_mask", "prompt_embeds_2", "prompt_embeds_mask_2"}


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("prompt_embeds_mask", None, "no prompt_embeds_mask"),
        ("negative_prompt_embeds_mask_2", None, "no negative_prompt_embeds_mask_2"),
        ("negative_prompt_embeds", None, "no negative_prompt_embeds"),
        ("prompt_embeds_mask", torch.ones(2, 4), r"is \[2, 4\], but prompt_embeds is \[2, 5, 32\]"),
        ("prompt_embeds", torch.zeros(2, 5, 30), r"reads \[batch, tokens, 32\]"),
        ("prompt_embeds_mask", torch.full((2, 5), 0.5), "other numbers than 0 and 1"),
        ("prompt_embeds_mask", torch.tensor([[1.0] * 5, [0.0] * 5]), "a row without a token"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(
    checkpoint: Path, tmp_path: Path, name: str, tensor: torch.Tensor | None, words: str
) -> None:
    embeddings = _embeddings()
    if tensor is None:
        del embeddings[name]
    else:
        embeddings[name] = tensor
    with pytest.raises(PortError, match=words):
        _read(checkpoint, tmp_path, embeddings)


def test_rows_that_differ_and_files_that_are_none_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    embeddings = _embeddings()
    for name in ("prompt_embeds_2", "prompt_embeds_mask_2"):
        embeddings[name] = embeddings[name][:1]
    with pytest.raises(PortError, match="different numbers of rows"):
        _read(checkpoint, tmp_path, embeddings)
    (tmp_path / "text").write_text("no tensors")
    for name in ("text", "nowhere"):
        with pytest.raises(PortError, match="cannot be read"):
            request.read_embeddings(tmp_path / name, checkpoint, guided=False)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ((40, 48, 9), "a patch of latents is 16 pixels, which does not divide 40.*32 or 48"),
        ((48, 8, 9), "does not divide 8"),
        ((48, 48, 8), r"8 is not 1 \+ 4 n.*5 or 9"),
        ((48, 48, 0), "0 is not"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(
    checkpoint: Path, size: tuple[int, int, int], words: str
) -> None:
    request.check_size(checkpoint, 48, 32, 9)
    with pytest.raises(PortError, match=f"(?s){words}"):
        request.check_size(checkpoint, *size)


def test_meshes_outputs_and_checkpoints_that_cannot_be_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    pipeline_checks.check_mesh({"dp": 1, "sp": -1, "tp": 4}, checkpoint)
    with pytest.raises(PortError, match=r"(?s)4 heads cannot be shared by 3.*1, 2, 4"):
        pipeline_checks.check_mesh({"dp": 1, "sp": 1, "tp": 3}, checkpoint)
    with pytest.raises(PortError, match="0 devices"):
        pipeline_checks.check_mesh({"dp": 0, "sp": 1, "tp": 1}, checkpoint)
    (tmp_path / "taken").touch()
    with pytest.raises(PortError, match="is a file"):
        checks.check_output(tmp_path / "taken" / "more")
    checks.check_output(tmp_path / "new" / "more")
    with pytest.raises(PortError, match="no such directory"):
        pipeline_checks.check_checkpoint(tmp_path / "nowhere", request.PIPELINE)
    with pytest.raises(PortError, match=r"model_index\.json cannot be read"):
        pipeline_checks.check_checkpoint(tmp_path, request.PIPELINE)
    (tmp_path / "model_index.json").write_text('{"_class_name": "WanPipeline"}')
    with pytest.raises(PortError, match="of a WanPipeline"):
        pipeline_checks.check_checkpoint(tmp_path, request.PIPELINE)


def test_prompts_and_embeddings_exclude_each_other_and_a_real_model_needs_a_prompt(checkpoint: Path) -> None:
    def read(*words: str) -> request.Request:
        return recipe.read_request(recipe.parse_arguments(["--checkpoint", str(checkpoint), *words]))

    with pytest.raises(PortError, match="embeddings and prompts"):
        read("--prompt", "a", "--prompt-embeds", "some.safetensors")
    with pytest.raises(PortError, match="there is no prompt"):
        read()
    size = ("--height", "64", "--width", "32", "--frames", "5", "--steps", "3", "--seed", "1")
    two_clips = read("--prompt", "a", "--prompt", "b", *size)
    assert (two_clips.count, two_clips.names, two_clips.height) == (2, ["a", "b"], 64)
    assert two_clips.guidance_scale is None
