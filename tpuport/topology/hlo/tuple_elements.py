"""Elements of tuples, which programs of newer compilers name without an instruction.

libtpu 0.0.42 writes `%w.1 = f32[4] get-tuple-element(%w), index=1` and reads `%w.1`;
libtpu 0.0.52 reads `%w#1`.
"""

import re
from typing import Final

from tpuport.topology.hlo.array_types import tuple_types

_ELEMENT: Final = re.compile(r"%([\w.-]+)#(\d+)")
_ORIGIN: Final = re.compile(r'\bop_name="(?:[^"\\]|\\.)*"|\bstack_frame_id=\d+')


def name_elements(
    text: str, line_pattern: re.Pattern[str], instruction_pattern: re.Pattern[str]
) -> str:
    """A program's text with an instruction for each element of a tuple that is read.

    Args:
        text: of the program.
        line_pattern: of an instruction with its line breaks.
        instruction_pattern: of its beginning; the groups are "ROOT", its name, its
            type and its opcode.
    """
    indices: dict[str, set[int]] = {}
    for name, index in _ELEMENT.findall(text):
        indices.setdefault(name, set()).add(int(index))
    if not indices:
        return text

    def add_elements(line: re.Match[str]) -> str:
        instruction = instruction_pattern.match(line[0])
        if instruction is None or instruction[2] not in indices:
            return line[0]
        types = tuple_types(instruction[3])
        origin = " ".join(_ORIGIN.findall(line[0]))
        metadata = f", metadata={{{origin}}}" if origin else ""
        return line[0] + "".join(
            f"\n  %{_element_name(instruction[2], index)} = {types[index]} "
            f"get-tuple-element(%{instruction[2]}), index={index}{metadata}"
            for index in sorted(indices[instruction[2]])
        )

    named = line_pattern.sub(add_elements, text)
    return _ELEMENT.sub(
        lambda element: f"%{_element_name(element[1], int(element[2]))}", named
    )


def _element_name(name: str, index: int) -> str:
    return f"{name}.element.{index}"
