"""The little world that the tiny HunyuanVideo-1.5 learns: one coloured shape that moves, and its caption.

Everything is drawn here and depends on a seed alone. Shapes: `F` frames, `H` and `W` pixels, `B` clips.
"""

import dataclasses
import random

import torch

HEIGHT = WIDTH = 48  # pixels
FRAMES = 9
COLOURS = {
    "red": (0.90, 0.16, 0.18),
    "green": (0.20, 0.75, 0.30),
    "blue": (0.18, 0.38, 0.95),
    "yellow": (0.98, 0.85, 0.20),
}
SHAPES = ("circle", "square", "triangle")
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
SIZES = {"small": 5.5, "large": 8.5}  # half the width, pixels
PACES = {"slowly": 10.0, "quickly": 24.0}  # the way from the first frame to the last, pixels
BACKGROUND = (0.07, 0.08, 0.12)

SYNONYMS = {
    "circle": ("circle", "disc", "ball"),
    "square": ("square", "box"),
    "triangle": ("triangle",),
    "small": ("small", "little", "tiny"),
    "large": ("large", "big"),
    "slowly": ("slowly", "gently"),
    "quickly": ("quickly", "fast"),
    "left": ("left", "to the left", "towards the left side"),
    "right": ("right", "to the right", "towards the right side"),
    "up": ("up", "upwards", "towards the top"),
    "down": ("down", "downwards", "towards the bottom"),
}
VERBS = ("moves", "slides", "goes", "is moving", "drifts")
OPENINGS = ("", "", "", "in this short clip", "the video shows that")
ENDINGS = (
    "",
    "",
    "",
    "across the dark picture",
    "in front of a dark background",
    "while nothing else can be seen",
)


@dataclasses.dataclass(frozen=True)
class Scene:
    """What a clip shows; `x` and `y` (pixels) are where the shape is halfway through it."""

    colour: str
    shape: str
    direction: str
    size: str
    pace: str
    x: float
    y: float


def draw_scene(chance: random.Random) -> Scene:
    """A random scene in which the shape stays inside the picture from the first frame to the last."""
    colour, shape = chance.choice(list(COLOURS)), chance.choice(SHAPES)
    direction, size, pace = (
        chance.choice(list(DIRECTIONS)),
        chance.choice(list(SIZES)),
        chance.choice(list(PACES)),
    )
    across, along = (abs(step) for step in DIRECTIONS[direction])

    def place(extent: int, moves: int) -> float:
        margin = SIZES[size] + 1 + moves * PACES[pace] / 2
        return chance.uniform(margin, extent - margin)

    return Scene(colour, shape, direction, size, pace, place(WIDTH, across), place(HEIGHT, along))


def caption(scene: Scene, chance: random.Random) -> str:
    """Words for the scene: colour, shape and direction always, size and pace sometimes, 3 to 20 words in all."""

    def word(name: str) -> str:
        return chance.choice(SYNONYMS[name])

    if chance.random() < 0.15:
        return f"{scene.colour} {word(scene.shape)} {scene.direction}"
    size = [word(scene.size)] if chance.random() < 0.5 else []
    pace = [word(scene.pace)] if chance.random() < 0.5 else []
    subject = [
        chance.choice(("a", "the", "one")),
        *size,
        scene.colour,
        word(scene.shape),
        chance.choice(VERBS),
    ]
    way = [*pace, word(scene.direction)] if chance.random() < 0.5 else [word(scene.direction), *pace]
    return " ".join(
        part for part in [chance.choice(OPENINGS), *subject, *way, chance.choice(ENDINGS)] if part
    )


def words() -> list[str]:
    """Every word that a caption can hold, sorted."""
    texts = ["a the one", *COLOURS, *SHAPES, *DIRECTIONS, *VERBS, *OPENINGS, *ENDINGS]
    texts += [text for names in SYNONYMS.values() for text in names]
    return sorted({word for text in texts for word in text.split()})


def coverage(shape: str, x: torch.Tensor, y: torch.Tensor, radius: float) -> torch.Tensor:
    """The share of each pixel that the shape covers, 0 to 1; `x` and `y` are distances from its centre in pixels."""
    if shape == "circle":
        outside = (x * x + y * y).sqrt() - radius
    elif shape == "square":
        outside = torch.maximum(x.abs(), y.abs()) - 0.88 * radius
    else:  # a triangle that stands on its base: the nearest of its three sides
        slope = (0.894 * x.abs() - 0.447 * (y + radius)).contiguous()
        outside = torch.maximum(slope, y - 0.9 * radius)
    return (0.5 - outside).clamp(0, 1)


def render(scene: Scene, frames: int = FRAMES) -> torch.Tensor:
    """The clip `[3, F, H, W]`, from -1 (black) to 1."""
    across, along = DIRECTIONS[scene.direction]
    moved = torch.linspace(-0.5, 0.5, frames).view(-1, 1, 1) * PACES[scene.pace]
    x = torch.arange(WIDTH).view(1, 1, -1) + 0.5 - (scene.x + across * moved)
    y = torch.arange(HEIGHT).view(1, -1, 1) + 0.5 - (scene.y + along * moved)
    x_FHW, y_FHW = torch.broadcast_tensors(x, y)
    alpha_FHW = coverage(scene.shape, x_FHW, y_FHW, SIZES[scene.size])
    colour, background = torch.tensor(COLOURS[scene.colour]), torch.tensor(BACKGROUND)
    mixed = background.view(3, 1, 1, 1) + (colour - background).view(3, 1, 1, 1) * alpha_FHW
    return mixed * 2 - 1


def clip(seed: int) -> tuple[Scene, str, torch.Tensor]:
    """The scene, its caption and its clip `[3, F, H, W]` for a seed."""
    chance = random.Random(seed)
    scene = draw_scene(chance)
    return scene, caption(scene, chance), render(scene)
