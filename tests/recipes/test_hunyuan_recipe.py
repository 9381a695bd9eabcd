"""The recipe as its users run it, and the checkpoint that it runs."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from recipes.command import run_command
from recipes.hunyuan_video import __main__ as hunyuan_recipe
from recipes.hunyuan_video import clips, tiny

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("transformer", "vae", "text_encoder", "text_encoder_2")


@pytest.fixture(scope="module")
def pipeline() -> Any:
    loaded: Any = tiny.load_pipeline()
    loaded.set_progress_bar_config(disable=True)
    return loaded


def _recipe(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "recipes.hunyuan_video", *arguments]
    # The recipe itself asks for devices.
    env = os.environ | {"XLA_FLAGS": re.sub(r"\S+device_count=\d+", "", os.environ["XLA_FLAGS"])}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)


def test_the_checkpoint_is_small_and_loads_as_float32(pipeline: Any) -> None:
    files = [file for file in tiny.CHECKPOINT.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 6_000_000
    for name in MODELS:
        assert {weight.dtype for weight in getattr(pipeline, name).parameters()} == {torch.float32}
    built: Any = tiny.build_pipeline()
    for name in tiny.settings_of(built.tokenizer):
        assert getattr(pipeline, name) == getattr(built, name)


def _colour(frames: np.ndarray) -> str:
    """The colour of what is drawn: that of the most saturated pixels."""
    pixels = frames.reshape(-1, 3)
    shape = pixels[np.argsort(np.ptp(pixels, axis=1))[-200:]].mean(0)
    return min(clips.COLOURS, key=lambda name: float(np.abs(shape - clips.COLOURS[name]).sum()))


def _way(frames: np.ndarray) -> str:
    """Where what is drawn goes."""
    bright = np.abs(frames - np.array(clips.BACKGROUND)).sum(-1) * (np.ptp(frames, axis=-1) > 0.3)
    y, x = np.mgrid[: frames.shape[1], : frames.shape[2]]
    (x0, y0), (x1, y1) = (
        (float((b * x).sum() / b.sum()), float((b * y).sum() / b.sum())) for b in (bright[0], bright[-1])
    )
    across, along = x1 - x0, y1 - y0
    if abs(across) > abs(along):
        return "right" if across > 0 else "left"
    return "down" if along > 0 else "up"


def test_the_clips_obey_their_captions_and_move(pipeline: Any) -> None:
    asked = [
        ("red circle left", "red", "left"),
        ("the large blue square slides quickly to the right", "blue", "right"),
        (
            "in this short clip a large green square drifts upwards in front of a dark background",
            "green",
            "up",
        ),
        ("a large yellow ball goes down", "yellow", "down"),
    ]
    drawn = pipeline(
        prompt=[text for text, _, _ in asked],
        negative_prompt=[""] * len(asked),
        height=48,
        width=48,
        num_frames=9,
        num_inference_steps=12,
        generator=[torch.Generator().manual_seed(row) for row in range(len(asked))],
    ).frames
    assert drawn.shape == (4, 9, 48, 48, 3)
    for (text, colour, way), frames in zip(asked, drawn, strict=True):
        assert (_colour(frames), _way(frames)) == (colour, way), text


def test_bad_arguments_are_a_sentence_and_not_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["recipes.hunyuan_video", "--height", "50", "--output", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        run_command(hunyuan_recipe.main)
    assert end.value.code == 1
    errors = capsys.readouterr().err
    assert "does not divide 50" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(), ("--cpu-devices", "8", "--dp", "2", "--sp", "2", "--tp", "2")])
def test_the_recipe_draws_what_torch_draws_and_shows_it(tmp_path: Path, mesh: tuple[str, ...]) -> None:
    prompts = (
        "--prompt",
        "red circle left",
        "--prompt",
        "in this short clip the small blue square slides slowly up",
    )
    done = _recipe(*prompts, "--steps", "6", "--output", str(tmp_path / "out"), *mesh)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torch renders the same" in done.stdout
    assert re.search(r"programs compiled.*transformer 1\b", done.stdout)
    for wrong in ("mask dropped", "padding zeroed"):
        off = re.search(rf"{wrong}: .* by up to ([\d.e+-]+) of 255", done.stdout)
        assert off is not None
        assert float(off[1]) > 5
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "clips.gif",
        "contact_sheet.png",
        "lesson.png",
    ]
    with Image.open(tmp_path / "out" / "clips.gif") as gif:
        assert getattr(gif, "n_frames", 1) == 9
