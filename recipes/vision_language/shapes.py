"""Pictures of one or two coloured shapes, and what the tiny vision-language model is to say about them."""

import dataclasses

import numpy as np
from PIL import Image, ImageDraw

COLOURS = {"red": (220, 50, 40), "green": (40, 170, 70), "blue": (50, 90, 220), "yellow": (240, 210, 60)}
KINDS = ("circle", "square", "triangle")
WHAT, HOW_MANY = "What is in the picture?", "How many shapes?"
_PAPER = (245, 243, 238)


@dataclasses.dataclass(frozen=True)
class Shape:
    """A shape of one colour."""

    colour: str
    kind: str

    def __str__(self) -> str:
        return f"a {self.colour} {self.kind}"


@dataclasses.dataclass(frozen=True)
class Scene:
    """One shape, or two beside or above one another.

    Attributes:
        size: width and height in pixels.
        shapes: from left to right, or from top to bottom.
        upright: whether the first is above the second.
    """

    size: tuple[int, int]
    shapes: tuple[Shape, ...]
    upright: bool = False

    def answer(self, question: str) -> str:
        """What the model is to say."""
        if question == HOW_MANY:
            return "one" if len(self.shapes) == 1 else "two"
        relation = " above " if self.upright else " left of "
        return relation.join(str(shape) for shape in self.shapes)


def invent(size: tuple[int, int], generator: np.random.Generator) -> Scene:
    """A scene by chance."""
    shapes = [
        Shape(str(generator.choice(list(COLOURS))), str(generator.choice(KINDS)))
        for _ in range(int(generator.integers(1, 3)))
    ]
    return Scene(size, tuple(shapes), upright=bool(generator.integers(2)))


def draw(scene: Scene, generator: np.random.Generator) -> Image.Image:
    """The picture of a scene, with each shape somewhere in its part."""
    image = Image.new("RGB", scene.size, _PAPER)
    pen = ImageDraw.Draw(image)
    width, height = scene.size
    count = len(scene.shapes)
    part_width = width if scene.upright else width / count
    part_height = height / count if scene.upright else height
    for index, shape in enumerate(scene.shapes):
        radius = min(part_width, part_height) * generator.uniform(0.3, 0.42)
        x = generator.uniform(radius + 1, part_width - radius - 1)
        y = generator.uniform(radius + 1, part_height - radius - 1)
        if scene.upright:
            y += index * part_height
        else:
            x += index * part_width
        _draw_shape(pen, shape, x, y, radius)
    return image


def _draw_shape(pen: ImageDraw.ImageDraw, shape: Shape, x: float, y: float, radius: float) -> None:
    colour = COLOURS[shape.colour]
    box = (x - radius, y - radius, x + radius, y + radius)
    if shape.kind == "circle":
        pen.ellipse(box, fill=colour)
    elif shape.kind == "square":
        pen.rectangle(box, fill=colour)
    else:
        pen.polygon(((x, box[1]), (box[2], box[3]), (box[0], box[3])), fill=colour)
