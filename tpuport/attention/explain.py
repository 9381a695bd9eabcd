"""What computed each attention call, and why: `tpuport.attention.explain()`."""

import dataclasses
import io
from collections.abc import Sequence
from typing import Any, overload

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from tpuport.attention.calls import Call, seen

_WIDTH = 120  # of the text form, which is for files and logs; a terminal has its own


class Report(Sequence[Call]):
    """Distinct calls in the order in which they were first seen; prints a few lines for each.

    Attributes:
        counts: how often each was traced.
        forgotten: how many are missing because there were too many.
    """

    def __init__(self, calls: dict[Call, int], forgotten: int = 0) -> None:
        self._calls = tuple(calls)
        self.counts = tuple(calls.values())
        self.forgotten = forgotten

    def __len__(self) -> int:
        return len(self._calls)

    @overload
    def __getitem__(self, index: int) -> Call: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Call]: ...
    def __getitem__(self, index: int | slice) -> Call | Sequence[Call]:
        return self._calls[index]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        calls = [dataclasses.asdict(call) | {"calls": n} for call, n in zip(self, self.counts, strict=True)]
        return {"calls": calls, "forgotten": self.forgotten}

    def __rich__(self) -> Group:
        parts = [_entry(call, count) for call, count in zip(self, self.counts, strict=True)]
        return Group(*parts, Text(self._caption()))

    def _caption(self) -> str:
        if not self:
            return "No attention call has been traced. Cached programs trace nothing."
        notes = [f"{self.forgotten} earlier calls forgotten"] if self.forgotten else []
        if any(call.implementation == "splash" for call in self):
            notes.insert(0, "splash: tpuport's kernel where the program is lowered for a TPU, XLA elsewhere")
        return "; ".join(notes)

    def __str__(self) -> str:
        out = io.StringIO()
        Console(file=out, width=_WIDTH, color_system=None, highlight=False).print(self.__rich__())
        return out.getvalue()

    __repr__ = __str__


def _entry(call: Call, count: int) -> Group:
    """A call in a few lines, which any terminal has room for."""
    where = f"{call.site}{f' in {call.module}' if call.module else ''}"
    traced = "once" if count == 1 else f"{count} times"
    padding = f", padded keys: {call.padding}" if call.padding else ""
    facts = {
        "called": f"through {call.source}, traced {traced}",
        "shapes": f"{_by(call.query)}; {_keys(call)} {call.dtype}",
        "mask": f"{call.mask}{padding}",
        call.implementation: call.reason,
        "mesh": call.mesh.replace("; ", "\n"),
    }
    lines = Table.grid(padding=(0, 2))
    for name, text in facts.items():
        lines.add_row(Text(f"  {name}", style="green" if name == call.implementation else "dim"), Text(text))
    return Group(Text(where, style="bold"), lines)


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _keys(call: Call) -> str:
    key, value = _by(call.key), _by(call.value)
    return key if key == value else f"{key}, {value}"


def explain(*, clear: bool = False) -> Report:
    """Every distinct attention call since the start: what computed it and why, by place, shape and dtype.

    Calls are noted while they are traced, so one that a cached program makes again is not counted again; a call in
    a compiled loop counts once. At most 1,000 distinct calls are kept.

    Args:
        clear: forget them afterwards.

    Returns:
        A sequence of `Call`. `print` shows them, `to_dict` gives plain values for JSON.
    """
    return Report(*seen(clear=clear))
