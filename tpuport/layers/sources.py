"""The line of model code that an equation is from."""

from typing import Any

_LIBRARIES = (
    "/torch/",
    "/torchax/",
    "/jax/",
    "/jaxlib/",
    "/jaxtyping/",
    "/beartype/",
    "/tpuport/",
    "/contextlib.py",
)


def line_of(equation: Any) -> str:
    """File and line of the innermost frame that is not in a library; empty where there is none."""
    traceback = equation.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        name = frame.file_name.replace("\\", "/")
        if not any(part in name for part in _LIBRARIES) and "<" not in name:
            return f"{frame.file_name}, line {frame.line_num}"
    return ""
