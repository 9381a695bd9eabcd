"""The line of model code that an equation is from."""

from typing import Any

from tpuport.trace_errors.libraries import is_library_file


def line_of(equation: Any) -> str:
    """File and line of the innermost frame that is not in a library; empty if there is none."""
    traceback = equation.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        if not is_library_file(frame.file_name):
            return f"{frame.file_name}, line {frame.line_num}"
    return ""
