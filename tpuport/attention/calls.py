"""A note of every distinct attention call, taken when it is traced."""

import dataclasses
import sys
import threading
from pathlib import Path
from types import FrameType

import torch

# Distinct calls that are kept; beyond it, the one that was seen longest ago is forgotten, and counted.
LIMIT = 1000
# Packages that lie between a model's code and the dispatch, and the modules of others that only pass a call on.
_BETWEEN = frozenset("torch torchax jax jaxlib tpuport beartype jaxtyping wrapt contextlib functools".split())
_HELPERS = ("transformers.integrations.", "diffusers.models.attention_dispatch", "accelerate.hooks")


@dataclasses.dataclass(frozen=True)
class Call:
    """One distinct attention call.

    Attributes:
        site: file and line in the model's code, or the user's.
        module: class of the nearest `torch.nn.Module` around it; empty where there is none.
        source: "torch", "transformers" or "diffusers": how it came here.
        query, key, value: [B, H, Q, D], [B, K, T, D] and [B, K, T, C].
        dtype: of the three.
        implementation: "splash", the fused kernel where the program is lowered for a TPU, or "xla".
        reason: why that one.
        mask: what is known of who sees whom.
        mesh: how devices share the work.
        padding: how padded keys are left out; empty where none are.
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


_lock = threading.Lock()
# Times traced, and when last; in the order in which they were first seen.
_calls: dict[Call, list[int]] = {}
_clock = 0
_forgotten = 0


def record(call: Call) -> None:
    """Note a call."""
    global _clock, _forgotten
    with _lock:
        _clock += 1
        entry = _calls.setdefault(call, [0, 0])
        entry[0] += 1
        entry[1] = _clock
        if len(_calls) > LIMIT:
            del _calls[min(_calls, key=lambda known: _calls[known][1])]
            _forgotten += 1


def seen(*, clear: bool) -> tuple[dict[Call, int], int]:
    """(how often each call was traced, how many are forgotten); `clear` forgets them all, and that too."""
    global _forgotten
    with _lock:
        found = {call: entry[0] for call, entry in _calls.items()}, _forgotten
        if clear:
            _calls.clear()
            _forgotten = 0
        return found


def place() -> tuple[str, str]:
    """(file and line of the code that called attention, class of the nearest module around it)."""
    site, module = "", ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (site and module):
        if not site and not _is_between(frame):
            site = f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"
        module = module or _module_of(frame)
        frame = frame.f_back
    return site, module


def _is_between(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    generated = frame.f_code.co_filename.startswith("<@beartype")
    return generated or name.partition(".")[0] in _BETWEEN or name.startswith(_HELPERS)


def _module_of(frame: FrameType) -> str:
    """The class of the module whose method this is."""
    if frame.f_code.co_varnames[:1] != ("self",):
        return ""
    found = frame.f_locals.get("self")
    return type(found).__name__ if isinstance(found, torch.nn.Module) else ""


def _short(filename: str) -> str:
    """The path below site-packages, or below the working directory."""
    path = Path(filename)
    if "site-packages" in path.parts:
        return str(Path(*path.parts[len(path.parts) - path.parts[::-1].index("site-packages") :]))
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return filename
