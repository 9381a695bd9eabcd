"""Pictures of clips, and that a file is there whole or not at all."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recipes import pictures


def _clips(count: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).random((count, 9, 16, 16, 3), dtype=np.float32))


def test_the_gif_has_every_frame_and_the_sheet_every_clip(tmp_path: Path) -> None:
    clips = _clips(2)
    with Image.open(pictures.save_gif(clips, tmp_path / "new" / "clips.gif", scale=2)) as gif:
        assert (getattr(gif, "n_frames", 1), gif.size) == (9, (2 * 32 + pictures.GAP, 32))
    sheet = pictures.contact_sheet(clips, ["one", "two"], shown=4, scale=1)
    assert sheet.height == 2 * (16 + pictures.LINE + pictures.GAP) + pictures.GAP
    shown = np.asarray(sheet)[pictures.GAP + pictures.LINE :, pictures.GAP :][:16, :16] / 255
    assert np.abs(shown - clips[0][0]).max() <= 0.5 / 255 + 1e-6


def test_the_figure_says_how_far_each_way_is_off() -> None:
    right = _clips(1)
    wrong = [right[0].copy()]
    wrong[0][3, 2, 2, 1] += 20 / 255
    figure = pictures.lesson_figure(["a"], {"torch": right, "zeroed": wrong}, "torch", shown=2)
    same = pictures.lesson_figure(["a"], {"torch": right, "zeroed": right}, "torch", shown=2)
    assert figure.height == same.height
    assert figure.width > same.width  # "off by up to 20 of 255" is longer than "... 0 of 255"


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError])
def test_an_interrupted_write_leaves_what_was_there(tmp_path: Path, failure: type[BaseException]) -> None:
    path = tmp_path / "clips.gif"
    path.write_bytes(b"before")

    def write() -> None:
        with pictures.whole_file(path) as file:
            file.write(b"half")
            raise failure

    with pytest.raises(failure):
        write()
    assert [place.name for place in tmp_path.iterdir()] == ["clips.gif"]
    assert path.read_bytes() == b"before"


def test_an_interrupt_while_a_gif_is_made_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Image.Image, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        pictures.save_gif(_clips(1), tmp_path / "clips.gif")
    assert list(tmp_path.iterdir()) == []
