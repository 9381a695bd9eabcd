"""The recipe of research code: what the linter says of it, and that the ported models do what torch does."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tpuport
from recipes.own_model import train
from recipes.own_model.__main__ import HERE, draw_pictures, lint_folder

# Of the GPT and of the diffusion transformer, as the README says.
RULES_BEFORE = {"gpt.py": {"TPU201", "TPU302"}, "dit.py": {"TPU302"}}


def test_the_linter_names_the_sins_and_finds_none_afterwards(capsys: pytest.CaptureFixture) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tpuport", "lint", "--format", "json", str(HERE / "before")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    findings = json.loads(done.stdout)["findings"]
    for name, rules in RULES_BEFORE.items():
        errors = {f["rule"] for f in findings if f["severity"] == "error" and f["path"].endswith(name)}
        assert rules <= errors, (name, errors)
    assert lint_folder("after") == 0
    assert "Expected to trace" in capsys.readouterr().out


def test_characters_come_back() -> None:
    text = "Tom counted ~3 lamps.\n"
    assert train.decode(train.encode(text)) == text


@pytest.mark.parametrize("kind", range(len(train.SHAPES)))
def test_shapes_differ_and_lie_inside(kind: int) -> None:
    pictures = [train.draw(kind, np.random.default_rng(seed)) for seed in range(3)]
    assert all(picture.shape == (16, 16) and -1 <= picture.min() < picture.max() <= 1 for picture in pictures)
    assert all((picture[[0, -1]] == -1).all() and (picture[:, [0, -1]] == -1).all() for picture in pictures)
    assert not np.array_equal(pictures[0], pictures[1])


def test_a_step_of_training() -> None:
    for trained, loss in (train.train_gpt(1), train.train_dit(1)):
        assert 0 < loss < 10
        assert not trained.training


def test_pictures_are_those_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # `tpuport.check` has tests of its own, and takes longer than the models.
    monkeypatch.setattr(tpuport, "check", lambda model, inputs: type("Result", (), {"verdict": "unchecked"}))
    mesh = tpuport.create_mesh(tp=1, dp=1, devices=tpuport_devices())
    path = tmp_path / "grid.png"
    assert draw_pictures(mesh, HERE / "checkpoint", path, columns=1, steps=2) < 0.01
    with Image.open(path) as image:
        assert image.size == (1 * 16 * 4, 5 * 16 * 4)


def tpuport_devices() -> list:
    import jax

    return jax.devices()[:1]


@pytest.mark.slow
def test_the_command_on_a_mesh(tmp_path: Path) -> None:
    out = tmp_path / "grid.png"
    done = subprocess.run(
        [sys.executable, "-m", "recipes.own_model", "--tp", "2", "--dp", "2", "--cpu-devices", "4", "--columns", "2",
         "--characters", "40", "--steps", "4", "--out", str(out)],
        cwd=HERE.parents[1], capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torch chooses the same characters: True" in done.stdout
    assert '"What is' in done.stdout
    assert out.is_file()


def test_the_trained_weights_know_the_text() -> None:
    from recipes.own_model.__main__ import greedy, read_weights
    from recipes.own_model.after.gpt import GPT, GPTConfig

    model = read_weights(GPT(GPTConfig()), "gpt", HERE / "checkpoint")
    text = train.decode(greedy(model, train.encode("On Wednesday"), 40))
    words = set(train.CORPUS.read_text(encoding="utf-8").split())
    whole = text.split()[:-1]
    assert sum(word in words for word in whole) >= 0.8 * len(whole), text
    assert sum(file.stat().st_size for file in (HERE / "checkpoint").iterdir()) < 2 * 2**20
    assert torch.isfinite(model.wte.weight).all()
