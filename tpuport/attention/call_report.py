"""What computed each attention call, and why: every distinct call is recorded while it
is traced.
"""

import dataclasses
import io
import os
import sys
import threading
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path
from types import FrameType
from typing import Any, Final, overload

import torch
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

# At most so many distinct calls are recorded; beyond that, the one traced longest ago
# is dropped, and counted.
LIMIT: Final = 1000
# Packages between a model's code and `attend`, and modules of other packages that only
# pass a call on.
_INTERMEDIATE: Final = frozenset(
    "torch torchax jax jaxlib tpuport beartype jaxtyping wrapt contextlib functools".split()
)
_HELPERS: Final = (
    "transformers.integrations.",
    "diffusers.models.attention_dispatch",
    "accelerate.hooks",
)
_WIDTH: Final = (
    120  # of the text form, which is for files and logs; a terminal has its own
)


@dataclasses.dataclass(frozen=True)
class Call:
    """One distinct attention call.

    Attributes:
        site: file and line in the model's code, or the user's.
        module: class of the nearest `torch.nn.Module` around it; empty if there is
            none.
        source: "torch", "transformers" or "diffusers": the library through which it
            came.
        query, key, value: [B, H, Q, D], [B, K, T, D] and [B, K, T, C].
        dtype: of the three.
        implementation: "flash", the fused kernel where the program is lowered for a
            TPU, or "xla".
        reason: why that implementation.
        mask: what is known of who sees whom.
        mesh: how the devices divide the work.
        padding: how padded keys are left out; empty if there are none.
    """

    site: str
    module: str
    source: str
    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    dtype: str
    implementation: str
    reason: str
    mask: str
    mesh: str
    padding: str


@dataclasses.dataclass
class _Record:
    count: int = 0
    last_traced: int = 0


_lock = threading.Lock()
# In the order in which the calls were first traced.
_records: dict[Call, _Record] = {}
_clock = 0
_dropped = 0


def record_call(call: Call) -> None:
    """Record that a call was traced."""
    global _clock, _dropped
    with _lock:
        # A count of calls is enough to tell which was traced longest ago.
        _clock += 1
        record = _records.setdefault(call, _Record())
        record.count += 1
        record.last_traced = _clock
        # A process that serves many shapes must not grow without end.
        if len(_records) > LIMIT:
            del _records[min(_records, key=lambda known: _records[known].last_traced)]
            _dropped += 1


def call_counts() -> dict[Call, int]:
    """How often each recorded call was traced."""
    with _lock:
        return _counts()


def _counts() -> dict[Call, int]:
    return {call: record.count for call, record in _records.items()}


def find_call_site() -> tuple[str, str]:
    """(file and line of the code that called attention, class of the nearest module
    around it).
    """
    site, module = "", ""
    # Not `inspect.stack`, which reads the source file of every frame.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (site and module):
        if not site and not _is_intermediate(frame):
            site = f"{_short_path(frame.f_code.co_filename)}:{frame.f_lineno}"
        module = module or _module_class(frame)
        frame = frame.f_back
    return site, module


def _is_intermediate(frame: FrameType) -> bool:
    if frame.f_code.co_filename.startswith("<@beartype"):
        return True
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in _INTERMEDIATE or name.startswith(_HELPERS)


def _module_class(frame: FrameType) -> str:
    """The class of the `torch.nn.Module` whose method the frame runs; empty if it runs
    none.
    """
    # Only methods are asked for their variables: `f_locals` copies all of them.
    if frame.f_code.co_varnames[:1] == ("self",):
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module):
            return type(owner).__name__
    return ""


def _short_path(filename: str) -> str:
    """The path below site-packages, or below the working directory."""
    # The last one: an environment may itself be inside of another package.
    _, separator, inside = filename.rpartition(f"{os.sep}site-packages{os.sep}")
    if separator:
        return str(Path(inside))
    try:
        return str(Path(filename).relative_to(Path.cwd()))
    except ValueError:
        return filename


class Report(Sequence[Call]):
    """Distinct calls in the order in which they were first traced; prints a few lines
    for each.

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
        calls = [
            dataclasses.asdict(call) | {"calls": n}
            for call, n in zip(self, self.counts, strict=True)
        ]
        return {"calls": calls, "forgotten": self.forgotten}

    def __rich__(self) -> Group:
        entries = list(starmap(_render_call, zip(self, self.counts, strict=True)))
        return Group(*entries, Text(self._caption()))

    def _caption(self) -> str:
        if not self:
            return "No attention call has been traced. Cached programs trace nothing."
        notes = []
        if any(call.implementation == "flash" for call in self):
            notes.append(
                "flash: tpuport's kernel where the program is lowered for a TPU, XLA elsewhere"
            )
        if self.forgotten:
            notes.append(f"{self.forgotten} earlier calls forgotten")
        return "; ".join(notes)

    def __str__(self) -> str:
        out = io.StringIO()
        Console(file=out, width=_WIDTH, color_system=None, highlight=False).print(
            self.__rich__()
        )
        return out.getvalue()

    __repr__ = __str__


def _render_call(call: Call, count: int) -> Group:
    """A call as lines that are short enough for any terminal."""
    traced = "once" if count == 1 else f"{count} times"
    shapes = [_format_shape(call.query), _format_shape(call.key)]
    if call.value != call.key:
        shapes[1] += f", {_format_shape(call.value)}"
    mask = call.mask
    if call.padding:
        mask += f", padded keys: {call.padding}"
    facts = {
        "called": f"through {call.source}, traced {traced}",
        "shapes": f"{'; '.join(shapes)} {call.dtype}",
        "mask": mask,
        call.implementation: call.reason,
        "mesh": call.mesh.replace("; ", "\n"),
    }
    lines = Table.grid(padding=(0, 2))
    for name, text in facts.items():
        style = "green" if name == call.implementation else "dim"
        lines.add_row(Text(f"  {name}", style=style), Text(text))
    title = call.site
    if call.module:
        title += f" in {call.module}"
    return Group(Text(title, style="bold"), lines)


def _format_shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def explain(*, clear: bool = False) -> Report:
    """Every distinct attention call since the start: what computed it and why, by site,
    shape and dtype.

    Calls are recorded while they are traced, so a call that a cached program repeats is
    not counted again; a call in a compiled loop counts once. At most 1,000 distinct
    calls are kept.

    Args:
        clear: forget them afterwards.

    Returns:
        A sequence of `Call`. `print` shows them, `to_dict` gives plain values for JSON.
    """
    global _dropped
    with _lock:
        report = Report(_counts(), _dropped)
        if clear:
            _records.clear()
            _dropped = 0
        return report
