"""How often the programs of one function were compiled, and a warning if one argument
keeps causing it.
"""

import logging
from collections.abc import Hashable
from typing import Literal, NamedTuple

from tpuport.compilation.arguments.descriptions import (
    CounterText,
    HostText,
    ShapeText,
    StateText,
)

logger = logging.getLogger("tpuport")

# Fewer compilations are normal in the life of a program: a prompt, a step, a second
# length.
_FIRST_WARNING = 4
_VALUES_SHOWN = 4


class ChangedArgument(NamedTuple):
    """What one program has other than the one before it.

    Attributes:
        name: of the argument, or where a value of the function's state is: "cache.pos".
        before, after: its descriptions.
        kind: a "tensor" has another shape or dtype; a "value" is a Python value among
            the arguments, a "state" one that the function reaches in another way, such
            as an attribute of a module.
    """

    name: str
    before: str
    after: str
    kind: Literal["tensor", "value", "state"]


class CompilationCount:
    """Counts the compilations of a function.

    Args:
        name: what warnings call it.

    Attributes:
        compilations: how often the function has been traced and compiled.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.compilations = 0
        self._forgotten = 0
        self._current_epoch: Hashable = None
        self._descriptions: list[dict[str, str]] = []

    def count(self, description: dict[str, str] | None, epoch: Hashable = None) -> None:
        """Count one more.

        Args:
            description: of each argument by name; equal ones share a program. None:
                this program is not warned about.
            epoch: a new one means that earlier programs were dropped on purpose, so
                that the count for warnings starts again.
        """
        self.compilations += 1
        logger.debug("compiling %s, time %d", self.name, self.compilations)
        if epoch != self._current_epoch:
            self._current_epoch = epoch
            self._descriptions.clear()
        if description is None:
            return
        self._descriptions.append(description)
        count = len(self._descriptions)
        # At 4, 8, 16, ...: who knows about it and goes on does not want to read it each
        # time.
        is_power_of_two = count & (count - 1) == 0
        if count >= _FIRST_WARNING and is_power_of_two:
            reason = _explain_recompilation(self._descriptions)
            verb = "traced" if self._forgotten else "compiled"
            logger.warning("%s has been %s %d times%s.", self.name, verb, count, reason)

    def forget_trace(self) -> None:
        """Count the last trace no longer: another program serves its calls."""
        self.compilations -= 1
        self._forgotten += 1

    def latest_changes(self) -> list[ChangedArgument]:
        """What the program that was compiled last has other than the one before it, by
        name.
        """
        if len(self._descriptions) < 2:
            return []
        before, after = self._descriptions[-2:]
        return [
            ChangedArgument(
                name,
                before.get(name, "absent"),
                text,
                _kind_of(before.get(name, text), text),
            )
            for name, text in after.items()
            if before.get(name) != text
        ]


def _kind_of(before: str, after: str) -> Literal["tensor", "value", "state"]:
    if isinstance(after, StateText):
        return "state"
    # A number that has become a tensor is a change of a value.
    if isinstance(before, ShapeText) and isinstance(after, ShapeText):
        return "tensor"
    return "value"


def _explain_recompilation(descriptions: list[dict[str, str]]) -> str:
    """Which argument has had the most values, and what to do about it."""
    values: dict[str, set[str]] = {
        name: {description.get(name, "absent") for description in descriptions}
        for name in descriptions[-1]
    }

    def count(name: str) -> tuple[int, bool]:
        # What counts along with a length is not to blame for it.
        has_shapes = any(isinstance(text, ShapeText) for text in values[name])
        return len(values[name]), has_shapes

    name = max(values, key=count, default="")
    different = sorted(values.get(name, ()))
    if len(different) < 2:
        return " for the same arguments: its hooks, functions, attention or placement keep changing"
    shown = ", ".join(different[:_VALUES_SHOWN])
    return f": {name} keeps changing ({shown}). {_suggest_remedy(name, different)}"


def _suggest_remedy(name: str, different: list[str]) -> str:
    if any(isinstance(text, CounterText) for text in different):
        return (
            "The cache counts in Python: tpuport.generate keeps windows in a cache of its own, and a StaticCache made "
            "of a config without sliding_window counts on the device"
        )
    if any(isinstance(text, StateText) for text in different):
        return "Let it be a tensor on the device, which is an argument of the program, or leave it as it is"
    if all(isinstance(text, HostText) for text in different):
        return (
            "Its values decide shapes: give it few different values, such as images of the same sizes "
            "(docs/compiled-functions.md, 'Values that decide shapes')"
        )
    if not any(isinstance(text, ShapeText) for text in different):
        if not all(map(is_number_text, different)):
            return (
                "It is a part of the program: pass what the code computes from it, as a tensor, or give it few "
                "different values"
            )
        return (
            f"Pass it as a tensor. tpuport.compile(..., traced=[{name!r}]) makes one of a number; the code must "
            "not slice with it then (docs/compiled-functions.md, 'Your own objects')"
        )
    # A shape is written "float32(2, 5)": without dtypes, equal texts have equal sizes.
    sizes = {text.partition("(")[2] for text in different}
    if len(sizes) == 1:
        return "Give it one dtype"
    return "Pad it to a few fixed lengths"


def is_number_text(text: str) -> bool:
    """Whether a text is that of a number of Python's."""
    try:
        float(text)
    except ValueError:
        return False
    return True
