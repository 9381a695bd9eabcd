"""Tensor-parallel plans for diffusers models: their own where the class has one, else found in their structure.

Four classes of diffusers 0.42 carry a plan. The others are built of the same parts under a few dozen names: attention
with its projections, a feed-forward that widens and narrows, and modulation, the linear layers that turn the timestep
into shifts, scales and gates. Decided here:

- Attention's queries, keys and values are cut by columns and its outputs by rows, in both streams; so is a
  feed-forward. That is two all-reduces a block and stream.
- Modulation is cut by rows, inside blocks only. It is a third of the weights of a HunyuanVideo-1.5 (12 E^2 of the
  36 E^2 of a block), and its output is one vector of 6 E a sample, so one all-reduce of that costs nothing to speak
  of. By columns it would cost one exchange for each of the six parts that the model splits the vector into.
- Embedders, the last norm and the output projection stay whole: they are little, and outside of the blocks.
- Projections that hold query, key and value in one matrix stay whole: cut evenly, no device would hold whole heads.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tpuport.library_classes import is_diffusers_model

logger = logging.getLogger("tpuport")

_QUERIES = (("to_q", "to_k", "to_v"), ("to_q_t", "to_k_t", "to_v_t"), ("to_query", "to_key", "to_value"))
_COLUMNS = (
    *(name for names in _QUERIES for name in names),
    *("add_q_proj", "add_k_proj", "add_v_proj", "to_gate", "to_g"),
)
_ROWS = ("to_out.0", "to_out", "to_add_out", "to_out_t", "out_layer")
_FUSED = re.compile(r"(\w+_)?(qkv|kv)(_\w+)?")


class _Form(NamedTuple):
    """The names in one kind of feed-forward: those that widen, and the one that narrows."""

    columns: tuple[str, ...]
    row: str


_FORMS = (
    _Form(("net.0.proj",), "net.2"),
    _Form(("gate_proj", "up_proj"), "down_proj"),
    _Form(("gate_proj", "up_proj"), "linear_fc2"),
    _Form(("gate", "up"), "down"),
    _Form(("w1", "w3"), "w2"),
    _Form(("wi_0", "wi_1"), "wo"),
    _Form(("linear_1", "linear_2"), "out_projection"),
    _Form(("linear_1", "linear_3"), "linear_2"),
    _Form(("gate_layer", "proj"), "out"),
    _Form(("linear_in",), "linear_out"),
    _Form(("proj_in",), "proj_out"),
    _Form(("in_layer",), "out_layer"),
    _Form(("ff_in",), "ff_out"),
    _Form(("fc1",), "fc2"),
    _Form(("0",), "2"),
    _Form(("0",), "3"),
    # Attention and feed-forward side by side, with one output projection over both.
    _Form(("proj_mlp",), "proj_out"),
)
_MODULATION_CLASS = re.compile(
    r"ada_?(ln|layer|norm|rms)|modulation|norm_?zero|normcontinuous", re.IGNORECASE
)
_MODULATION_NAME = re.compile(r"(.*\.)?(\w*_mod|ada_?ln\w*|\w*modulation)(\..*)?", re.IGNORECASE)


def diffusers_plan(model: Any) -> dict[str, str] | None:
    """The plan of a diffusers model that has attention; None for autoencoders, and for anything else.

    The class's own plan says what is cut inside attention and feed-forwards, where there is one. Parameters may be on
    the meta device.

    Returns:
        Styles by module name below the model, `*` for a layer's number. Widths that are odd, which no axis of a TPU
        mesh divides, are left out.
    """
    if not is_diffusers_model(model) or "diffusers.models.autoencoders." in _origin(model):
        return None
    search = _Search(model)
    attention = dict(search.attention())
    own = getattr(model, "_tp_plan", None) or {}
    if not (attention or own or search.fused):
        return None
    if search.fused and not own:
        logger.info(
            "%s keeps query, key and value in one matrix, which is replicated: %s",
            type(model).__name__,
            ", ".join(sorted(search.fused)),
        )
    if own:
        return {**dict(search.modulation()), **own}
    return {**attention, **dict(search.feed_forward()), **dict(search.modulation())}


def _origin(model: Any) -> str:
    """The module of diffusers that the model's class, or the nearest of its bases, stands in."""
    found = (base.__module__ for base in type(model).__mro__)
    return next((name + "." for name in found if name.startswith("diffusers.")), "")


class _Search:
    """One pass over a model's modules for each kind of part.

    Attributes:
        fused: the keys of fused projections that were met.
    """

    def __init__(self, model: Any) -> None:
        self.modules: dict[str, Any] = dict(model.named_modules())
        self.fused: set[str] = set()

    def attention(self) -> Iterator[tuple[str, str]]:
        """Projections of query, key and value by columns, the outputs by rows."""
        for path, module in self.modules.items():
            self.fused |= {
                _key(path, name)
                for name, child in module.named_children()
                if _FUSED.fullmatch(name) and _matrix(child)
            }
            if not any(all(self._shape(path, name) for name in names) for names in _QUERIES):
                continue
            for names, style in ((_COLUMNS, "colwise"), (_ROWS, "rowwise")):
                yield from ((_key(path, name), style) for name in names if self._shape(path, name))

    def feed_forward(self) -> Iterator[tuple[str, str]]:
        """The matrices that widen by columns, those that narrow by rows; in blocks only."""
        for path in self.modules:
            for form in _FORMS if _in_block(path) else ():
                style = self._style(path, form)
                if style is None:
                    continue
                yield from ((_key(path, name), style) for name in form.columns)
                yield _key(path, form.row), "rowwise"
                break

    def modulation(self) -> Iterator[tuple[str, str]]:
        """Linear layers that make shifts, scales and gates of the timestep, by rows; in blocks only."""
        for path, module in self.modules.items():
            shape = _matrix(module)
            owner, _, leaf = path.rpartition(".")
            if not shape or not _in_block(path) or shape[0] < shape[1] or shape[1] % 2:
                continue
            if _MODULATION_CLASS.search(type(self.modules[owner]).__name__) or _MODULATION_NAME.fullmatch(
                path
            ):
                yield _key(owner, leaf), "rowwise"

    def _style(self, path: str, form: _Form) -> str | None:
        """How the widening matrices of a feed-forward are cut; None where the module has not this form."""
        row = self._shape(path, form.row)
        columns = {self._shape(path, name) for name in form.columns}
        first = columns.pop()
        if row is None or first is None or columns:
            return None
        (wide, width), (narrow, inner) = first, row
        if wide == 0 or wide % 2 or inner % 2:
            return None
        if form.columns == ("proj_mlp",):
            return "colwise" if inner > narrow else None
        if narrow != width:
            return None
        # Two halves, of which one gates the other, in one matrix.
        return "colwise" if inner == wide else "packed_colwise" if 2 * inner == wide else None

    def _shape(self, path: str, name: str) -> tuple[int, int] | None:
        return _matrix(self.modules.get(f"{path}.{name}" if path else name))


def _matrix(module: Any) -> tuple[int, int] | None:
    """The shape [out, in] of a linear layer's weight."""
    weight = getattr(module, "weight", None)
    if weight is None or not hasattr(module, "in_features") or weight.ndim != 2:
        return None
    return int(weight.shape[0]), int(weight.shape[1])


def _in_block(path: str) -> bool:
    """Whether the module is in one of several layers."""
    return any(part.isdecimal() for part in path.split("."))


def _key(path: str, name: str) -> str:
    """The plan's key: numbers in the owner's path are layers, those in the name below it stand for themselves."""
    parts = ["*" if part.isdecimal() else part for part in path.split(".")] if path else []
    return ".".join([*parts, name])
