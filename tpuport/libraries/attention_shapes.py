"""Attention shapes of real models, by name, for measuring.

Not a part of `tpuport.attention`, whose import takes seconds: `tpuport tune` checks
shapes before.
"""

import re
from dataclasses import dataclass
from typing import Final

from tpuport.errors import PortError

_LETTERS: Final = "B,H,K,Q,T,D"
# Of ASCII digits: `int` would take those of other scripts too.
_SIX_NUMBERS: Final = re.compile(",".join([r"\s*([0-9]+)\s*"] * 6))


@dataclass(frozen=True)
class Shape:
    """One attention call: batch, query heads, key/value heads, query length, key
    length, head dimension.

    `causal` is what the model itself does; `name` is what the user wrote.
    """

    name: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    causal: bool = False


NAMED: Final = {
    shape.name: shape
    for shape in (
        Shape("llama3-8b-8k", 1, 32, 8, 8192, 8192, 128, causal=True),
        Shape(
            "wan2.1-32760", 1, 40, 40, 32760, 32760, 128
        ),  # 14B, 480 x 832, 81 frames
        Shape(
            "wan2.1-75600", 1, 40, 40, 75600, 75600, 128
        ),  # 14B, 720 x 1280, 81 frames
        Shape(
            "hunyuanvideo1.5-111600", 1, 16, 16, 111600, 111600, 128
        ),  # 720p, 121 frames
        Shape(
            "flux-4608", 1, 24, 24, 4608, 4608, 128
        ),  # 1024 x 1024, and 512 tokens of text
    )
}


def parse_shape(text: str) -> Shape:
    """The shape that a name, or six numbers such as "1,32,8,8192,8192,128", means.

    Raises:
        PortError: the text is neither, or the numbers are not an attention call.
    """
    if text in NAMED:
        return NAMED[text]
    match = _SIX_NUMBERS.fullmatch(text)
    if match is None:
        raise _unusable(text, f"it is neither a known name nor six numbers {_LETTERS}")
    sizes = list(map(int, match.groups()))
    if 0 in sizes:
        raise _unusable(text, "every number must be at least 1")
    batch, heads, kv_heads, queries, keys, head_dim = sizes
    shape = Shape(text, batch, heads, kv_heads, queries, keys, head_dim)
    if shape.heads % shape.kv_heads:
        raise _unusable(
            text,
            f"{shape.kv_heads} key/value heads do not divide {shape.heads} query heads",
        )
    if not 32 <= shape.head_dim <= 256:
        raise _unusable(
            text, f"the kernel serves head dimensions 32 to 256, not {shape.head_dim}"
        )
    return shape


def _unusable(text: str, reason: str) -> PortError:
    return PortError(
        f'"{text}" is not an attention shape: {reason}',
        where="--shape",
        fix=f"use one of {', '.join(NAMED)}, or {_LETTERS} such as 1,32,8,8192,8192,128",
    )
