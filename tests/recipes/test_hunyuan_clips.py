"""The drawn clips say what their captions say."""

import random

import pytest
import torch

from recipes.hunyuan_video import clips
from recipes.hunyuan_video.tiny import LENGTHS, build_tokenizer


def _centre(frame: torch.Tensor) -> tuple[float, float]:
    """Where the shape is in a frame `[3, H, W]`, x and y."""
    bright = (frame - frame[:, :1, :1]).abs().sum(0)
    x, y = torch.arange(bright.shape[1]), torch.arange(bright.shape[0])
    return float((bright.sum(0) * x).sum() / bright.sum()), float((bright.sum(1) * y).sum() / bright.sum())


@pytest.mark.parametrize("seed", range(12))
def test_the_shape_has_the_colour_and_goes_the_way_that_the_caption_names(seed: int) -> None:
    scene, text, clip = clips.clip(seed)
    assert clip.shape == (3, clips.FRAMES, clips.HEIGHT, clips.WIDTH)
    assert scene.colour in text.split()
    assert any(name in text for name in clips.SYNONYMS[scene.shape])
    assert any(name in text for name in clips.SYNONYMS[scene.direction])
    (x, y), (later_x, later_y) = _centre(clip[:, 0]), _centre(clip[:, -1])
    across, along = clips.DIRECTIONS[scene.direction]
    way = clips.PACES[scene.pace]
    assert later_x - x == pytest.approx(across * way, abs=0.5)
    assert later_y - y == pytest.approx(along * way, abs=0.5)
    middle = clip[:, clips.FRAMES // 2, round(scene.y), round(scene.x)]
    assert torch.allclose((middle + 1) / 2, torch.tensor(clips.COLOURS[scene.colour]), atol=0.02)


def test_a_seed_gives_the_same_clip_and_captions_differ_in_length() -> None:
    first, again = clips.clip(5), clips.clip(5)
    assert first[:2] == again[:2]
    assert torch.equal(first[2], again[2])
    lengths = {len(clips.clip(seed)[1].split()) for seed in range(40)}
    assert min(lengths) == 3
    assert max(lengths) >= 15


def test_every_word_of_a_caption_is_one_token_and_the_longest_caption_fits() -> None:
    tokenizer = build_tokenizer()
    chance = random.Random(0)
    for _ in range(60):
        text = clips.caption(clips.draw_scene(chance), chance)
        tokens = tokenizer.tokenize(" " + text)
        assert len(tokens) == len(text.split())
        assert len(tokens) + 2 <= LENGTHS["tokenizer_max_length"]
    assert tokenizer.decode(tokenizer(" Größe 7")["input_ids"]) == " Größe 7"
