"""Pictures of clips: animated GIFs, contact sheets, and the figure that compares ways of treating padding.

Clips are arrays `[F, H, W, 3]` from 0 to 1. Every file is written beside its place and then renamed into it, so that an
interrupt leaves either the whole file or none.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

PAPER, INK, FAINT = (255, 255, 255), (20, 20, 24), (110, 110, 120)
GAP = 4  # pixels between pictures
LINE = 16  # pixels of a line of text


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that takes its name only when the block ends without an error; otherwise it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def as_images(clip: np.ndarray, scale: int = 1) -> list[Image.Image]:
    """One picture a frame, enlarged by a whole factor without smoothing."""
    pixels = (np.clip(clip, 0, 1) * 255).round().astype(np.uint8)
    images = [Image.fromarray(frame) for frame in pixels]
    return [
        image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
        for image in images
    ]


def chosen_frames(count: int, shown: int) -> list[int]:
    """Which of `count` frames a sheet shows: the first, the last, and as even as may be between them."""
    return sorted({int(index) for index in np.linspace(0, count - 1, min(count, shown)).round()})


def strip(clip: np.ndarray, shown: int, scale: int) -> Image.Image:
    """Some frames of a clip side by side."""
    images = as_images(clip, scale)
    images = [images[index] for index in chosen_frames(len(images), shown)]
    width, height = images[0].size
    sheet = Image.new("RGB", (len(images) * (width + GAP) - GAP, height), PAPER)
    for column, image in enumerate(images):
        sheet.paste(image, (column * (width + GAP), 0))
    return sheet


def stack(rows: Sequence[tuple[str, Image.Image, Any]]) -> Image.Image:
    """Pictures below one another, each under its line of text in its colour."""
    font = ImageFont.load_default(12)
    width = (
        max([image.width for _, image, _ in rows] + [int(font.getlength(text)) for text, _, _ in rows])
        + 2 * GAP
    )
    sheet = Image.new("RGB", (width, sum(image.height + LINE + GAP for _, image, _ in rows) + GAP), PAPER)
    pen, top = ImageDraw.Draw(sheet), GAP
    for text, image, ink in rows:
        pen.text((GAP, top), text, fill=ink, font=font)
        sheet.paste(image, (GAP, top + LINE))
        top += image.height + LINE + GAP
    return sheet


def contact_sheet(
    clips: Sequence[np.ndarray], captions: Sequence[str], shown: int = 7, scale: int = 2
) -> Image.Image:
    """A row of frames for each caption."""
    return stack([(text, strip(clip, shown, scale), INK) for text, clip in zip(captions, clips, strict=True)])


def lesson_figure(
    captions: Sequence[str],
    ways: dict[str, Sequence[np.ndarray]],
    reference: str,
    shown: int = 7,
    scale: int = 2,
) -> Image.Image:
    """For each caption a row a way, with the largest difference of a pixel from the reference's row (0 to 255)."""
    rows: list[tuple[str, Image.Image, Any]] = []
    for index, text in enumerate(captions):
        rows.append((f'"{text}"', Image.new("RGB", (1, 1), PAPER), INK))
        for name, clips in ways.items():
            differs = float(np.abs(clips[index] - ways[reference][index]).max()) * 255
            note = "" if name == reference else f"   off by up to {differs:.3g} of 255"
            rows.append((f"{name}{note}", strip(clips[index], shown, scale), FAINT))
    return stack(rows)


def save_image(image: Image.Image, path: Path) -> Path:
    """Write a PNG; returns its path."""
    with whole_file(path) as file:
        image.quantize(255).save(file, format="PNG", optimize=True)
    return path


def save_gif(clips: Sequence[np.ndarray], path: Path, scale: int = 4, milliseconds: int = 110) -> Path:
    """Write one animated GIF of the clips side by side, which repeats for ever; returns its path."""
    moving = [as_images(clip, scale) for clip in clips]
    width, height = moving[0][0].size
    frames = []
    for together in zip(*moving, strict=True):
        frame = Image.new("RGB", (len(moving) * (width + GAP) - GAP, height), PAPER)
        for column, image in enumerate(together):
            frame.paste(image, (column * (width + GAP), 0))
        frames.append(frame)
    with whole_file(path) as file:
        frames[0].save(
            file, format="GIF", save_all=True, append_images=frames[1:], duration=milliseconds, loop=0
        )
    return path
