"""The recipes of pipelines: tiny pipelines, checkpoints of them, and what is checked before anything is loaded."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recipes import pipeline_command
from recipes.pipeline_command import PipelineRecipe
from recipes.qwen_image.texts import BUCKET, pad_texts
from tpuport import PortError

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("flux", "qwen_image", "wan")


def _recipe(name: str) -> PipelineRecipe:
    return importlib.import_module(f"recipes.{name}.__main__").RECIPE


def _small_options(recipe: PipelineRecipe) -> dict[str, Any]:
    options = {**recipe.tiny_call, "height": 32, "width": 32, "num_inference_steps": 2}
    return options | ({"num_frames": 5} if "num_frames" in options else {})


def _render(recipe: PipelineRecipe, pipeline: Any, texts: dict[str, Any], prompts: list[str]) -> np.ndarray:
    pipeline.set_progress_bar_config(disable=True)
    return pipeline_command.render(pipeline, texts, _small_options(recipe), seed=0, count=len(prompts))


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_of_the_tiny_pipeline_renders_the_same(name: str, tmp_path: Path) -> None:
    recipe = _recipe(name)
    built = recipe.build_tiny()
    built.save_pretrained(tmp_path)
    words = ["--checkpoint", str(tmp_path), "--prompt", "a circle"]
    arguments = pipeline_command.parse_arguments(recipe, words)
    pipeline_command.check_request(recipe, arguments, {"dp": 1, "sp": 1, "tp": 2})
    loaded = pipeline_command.load_pipeline(recipe, arguments)
    prompts = ["a circle", "two squares beside a circle"]
    texts = pipeline_command.prompts_as_text(built, prompts, "")
    clips = _render(recipe, built, texts, prompts)
    assert clips.shape == (2, 5 if name == "wan" else 1, 32, 32, 3)
    # The two prompts are read: noise alone makes no difference of this size between text and no text.
    assert clips.std() > 0.02
    np.testing.assert_allclose(_render(recipe, loaded, texts, prompts), clips, atol=1e-6)


def test_padding_texts_to_a_bucket_changes_nothing() -> None:
    recipe = _recipe("qwen_image")
    pipeline = recipe.build_tiny()
    prompts = ["a circle", "two squares beside a circle"]
    expected = _render(recipe, pipeline, pipeline_command.prompts_as_text(pipeline, prompts, ""), prompts)
    texts = pad_texts(pipeline, prompts, "")
    assert texts["prompt_embeds"].shape[1] % BUCKET == 0
    assert not texts["prompt_embeds_mask"].all(dim=1).any()
    np.testing.assert_allclose(_render(recipe, pipeline, texts, prompts), expected, atol=1e-6)
    # Without its masks, padding would be read.
    texts["prompt_embeds_mask"] = torch.ones_like(texts["prompt_embeds_mask"])
    assert abs(_render(recipe, pipeline, texts, prompts) - expected).max() > 1e-5


def test_what_cannot_be_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    recipe = _recipe("flux")
    sizes = {"dp": 1, "sp": 1, "tp": 1}

    def check(*words: str) -> None:
        pipeline_command.check_request(recipe, pipeline_command.parse_arguments(recipe, words), sizes)

    check()
    with pytest.raises(PortError, match="no such directory"):
        check("--checkpoint", str(tmp_path / "nowhere"))
    (tmp_path / "model_index.json").write_text('{"_class_name": "WanPipeline"}')
    with pytest.raises(PortError, match=r"(?s)of a WanPipeline.*FluxPipeline"):
        check("--checkpoint", str(tmp_path))
    with pytest.raises(PortError, match="float16"):
        check("--dtype", "float16")
    (tmp_path / "taken").touch()
    with pytest.raises(PortError, match="is a file"):
        check("--output", str(tmp_path / "taken"))
    with pytest.raises(SystemExit):
        check("--compare", "--dtype", "bfloat16")


def test_options_of_the_command_are_arguments_of_the_call() -> None:
    recipe = _recipe("wan")
    words = ["--frames", "5", "--guidance-scale", "1.5", "--steps", "3"]
    options = pipeline_command.call_options(recipe, pipeline_command.parse_arguments(recipe, words))
    assert options == {
        "height": 64, "width": 64, "num_frames": 5, "num_inference_steps": 3, "guidance_scale": 1.5
    }  # fmt: skip
    recipe = _recipe("qwen_image")
    arguments = pipeline_command.parse_arguments(recipe, ["--checkpoint", "x", "--guidance-scale", "2"])
    assert pipeline_command.call_options(recipe, arguments)["true_cfg_scale"] == 2
    assert pipeline_command.call_options(recipe, arguments)["height"] == 1328


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(), ("--cpu-devices", "4", "--dp", "2", "--tp", "2")])
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_renders_what_torch_renders(name: str, mesh: tuple[str, ...], tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        f"recipes.{name}",
        "--steps",
        "3",
        "--output",
        str(tmp_path / "out"),
        *mesh,
    ]
    # The recipe itself asks for devices.
    env = os.environ | {"XLA_FLAGS": re.sub(r"\S+device_count=\d+", "", os.environ["XLA_FLAGS"])}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torch renders the same" in done.stdout
    difference = re.search(r"tpuport: .* by up to ([\d.e+-]+) of 255", done.stdout)
    assert difference is not None
    assert float(difference[1]) < 0.05
    assert re.search(r"programs compiled.*\btransformer 1\b", done.stdout)
    assert (tmp_path / "out" / "contact_sheet.png").exists()
