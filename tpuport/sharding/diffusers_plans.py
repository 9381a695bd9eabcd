"""Tensor-parallel plans for diffusers models: the class's own plan if it has one, else
derived from its structure.

Four classes of diffusers 0.42 carry a plan. The others are built of the same parts
under a few dozen names: attention with its projections, a feed-forward that widens and
narrows, and modulation, the linear layers that turn the timestep into shifts, scales
and gates. Decisions made here:

- Attention's queries, keys and values are cut by columns and its outputs by rows, in
  both streams; so is a feed-forward. That is two all-reduces for each block and stream.
- Modulation is cut by rows, inside blocks only. It is a third of the weights of a
  HunyuanVideo-1.5 (12 E^2 of the 36 E^2 of a block), and its output is one vector of 6
  E for each sample, so an all-reduce of it costs next to nothing. By columns it would
  cost an exchange for each of the six parts that the model splits the vector into.
- Embedders, the last norm and the output projection stay whole: they are small, and
  outside the blocks.
- Projections that hold query, key and value in one matrix stay whole: an even cut would
  leave no device whole heads.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tpuport.internals.diffusers_internals import plan_of_class
from tpuport.libraries.library_classes import is_diffusers_model

logger = logging.getLogger("tpuport")

_QUERIES = (
    ("to_q", "to_k", "to_v"),
    ("to_q_t", "to_k_t", "to_v_t"),
    ("to_query", "to_key", "to_value"),
)
_PROJECTION_STYLES = {
    **dict.fromkeys(itertools.chain(*_QUERIES), "colwise"),
    **dict.fromkeys(
        ("add_q_proj", "add_k_proj", "add_v_proj", "to_gate", "to_g"), "colwise"
    ),
    **dict.fromkeys(
        ("to_out.0", "to_out", "to_add_out", "to_out_t", "out_layer"), "rowwise"
    ),
}
_FUSED = re.compile(r"(\w+_)?(qkv|kv)(_\w+)?")


class _FeedForward(NamedTuple):
    """The names in one kind of feed-forward: the matrices that widen, and the one that
    narrows.
    """

    columns: tuple[str, ...]
    row: str


# Attention and feed-forward side by side, with one output projection over both.
_PARALLEL = _FeedForward(("proj_mlp",), "proj_out")
_FEED_FORWARDS = (
    _FeedForward(("net.0.proj",), "net.2"),
    _FeedForward(("gate_proj", "up_proj"), "down_proj"),
    _FeedForward(("gate_proj", "up_proj"), "linear_fc2"),
    _FeedForward(("gate", "up"), "down"),
    _FeedForward(("w1", "w3"), "w2"),
    _FeedForward(("wi_0", "wi_1"), "wo"),
    _FeedForward(("linear_1", "linear_2"), "out_projection"),
    _FeedForward(("linear_1", "linear_3"), "linear_2"),
    _FeedForward(("gate_layer", "proj"), "out"),
    _FeedForward(("linear_in",), "linear_out"),
    _FeedForward(("proj_in",), "proj_out"),
    _FeedForward(("in_layer",), "out_layer"),
    _FeedForward(("ff_in",), "ff_out"),
    _FeedForward(("fc1",), "fc2"),
    _FeedForward(("0",), "2"),
    _FeedForward(("0",), "3"),
    _PARALLEL,
)
_MODULATION_CLASS = re.compile(
    r"ada_?(ln|layer|norm|rms)|modulation|norm_?zero|normcontinuous", re.IGNORECASE
)
_MODULATION_NAME = re.compile(
    r"(.*\.)?(\w*_mod|ada_?ln\w*|\w*modulation)(\..*)?", re.IGNORECASE
)


def diffusers_plan(model: Any) -> dict[str, str] | None:
    """The plan of a diffusers model that has attention; None for autoencoders and for
    anything else.

    If the class has a plan, it decides what is cut inside attention and feed-forwards.
    Parameters may be on the meta device.

    Returns:
        Styles by module name below the model, `*` for a layer's number. Odd widths,
        which no axis of a TPU mesh divides, are left out.
    """
    if not is_diffusers_model(model) or _library_module(model).startswith(
        "diffusers.models.autoencoders."
    ):
        return None
    search = _Search(model)
    own_plan = plan_of_class(model)
    if own_plan:
        # The classes' own plans leave modulation out.
        return {**dict(search.modulation()), **own_plan}
    attention = dict(search.attention())
    fused = search.fused_projections()
    if not (attention or fused):
        return None
    if fused:
        logger.info(
            "%s keeps query, key and value in one matrix, which is replicated: %s",
            type(model).__name__,
            ", ".join(sorted(fused)),
        )
    return {**attention, **dict(search.feed_forward()), **dict(search.modulation())}


def _library_module(model: Any) -> str:
    """The module of diffusers that defines the model's class, or the nearest of its
    bases.
    """
    return next(
        cls.__module__
        for cls in type(model).__mro__
        if cls.__module__.startswith("diffusers.")
    )


class _Search:
    """The parts of a model that a plan divides, each as (plan key, style)."""

    def __init__(self, model: Any) -> None:
        self.modules: dict[str, Any] = dict(model.named_modules())
        # Of linear layers, by path.
        self.shapes = {
            path: shape
            for path in self.modules
            if (shape := _matrix_shape(self.modules[path]))
        }

    def fused_projections(self) -> set[str]:
        """Keys of the matrices that hold keys and values, or queries too, at once."""
        keys = set()
        for path in self.shapes:
            owner, _, name = path.rpartition(".")
            if _FUSED.fullmatch(name):
                keys.add(_plan_key(owner, name))
        return keys

    def attention(self) -> Iterator[tuple[str, str]]:
        """Projections of query, key and value by columns, the outputs by rows."""
        for path in self.modules:
            projections = list(
                filter(functools.partial(self._shape, path), _PROJECTION_STYLES)
            )
            if any(map(set(projections).issuperset, _QUERIES)):
                for name in projections:
                    yield _plan_key(path, name), _PROJECTION_STYLES[name]

    def feed_forward(self) -> Iterator[tuple[str, str]]:
        """The matrices that widen by columns, those that narrow by rows; in blocks
        only.
        """
        for path in filter(_is_in_block, self.modules):
            for kind in _FEED_FORWARDS:
                style = self._widening_style(path, kind)
                if style is not None:
                    for name in kind.columns:
                        yield _plan_key(path, name), style
                    yield _plan_key(path, kind.row), "rowwise"
                    break  # a module may have the names of several kinds

    def modulation(self) -> Iterator[tuple[str, str]]:
        """Linear layers that compute shifts, scales and gates from the timestep, by
        rows; in blocks only.
        """
        for path in filter(_is_in_block, self.shapes):
            owner, _, leaf = path.rpartition(".")
            wide, width = self.shapes[path]
            # Modulation widens, and an odd width cannot be divided.
            if wide < width or width % 2:
                continue
            class_name = type(self.modules[owner]).__name__
            if _MODULATION_CLASS.search(class_name) or _MODULATION_NAME.fullmatch(path):
                yield _plan_key(owner, leaf), "rowwise"

    def _widening_style(self, path: str, kind: _FeedForward) -> str | None:
        """How the widening matrices of a feed-forward are cut; None if the module is
        not of this kind.
        """
        narrowing = self._shape(path, kind.row)
        widening = {self._shape(path, name) for name in kind.columns}
        first = widening.pop()
        if narrowing is None or first is None or widening:
            return None
        (wide, width), (narrow, inner) = first, narrowing
        # Empty matrices are those of a class built without sizes.
        if wide == 0 or wide % 2 or inner % 2:
            return None
        if kind is _PARALLEL:
            return "colwise" if inner > narrow else None
        if narrow != width:
            return None
        # The last holds two halves in one matrix, of which one gates the other.
        return {wide: "colwise", wide / 2: "packed_colwise"}.get(inner)

    def _shape(self, path: str, name: str) -> tuple[int, int] | None:
        return self.shapes.get(f"{path}.{name}".lstrip("."))


def _matrix_shape(module: Any) -> tuple[int, int] | None:
    """The shape [out, in] of a linear layer's weight; None for any other module."""
    from tpuport.quantization import find_weight

    weight = find_weight(module)
    if weight is None or not hasattr(module, "in_features") or weight.ndim != 2:
        return None
    return int(weight.shape[0]), int(weight.shape[1])


def _is_in_block(path: str) -> bool:
    """Whether the module is in a list of layers."""
    return any(map(str.isdecimal, path.split(".")))


def _plan_key(path: str, name: str) -> str:
    """The plan's key: numbers in the owner's path become `*`, those in the name below
    it stay, as in `to_out.0`.
    """
    pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", path)
    return f"{pattern}.{name}".removeprefix(".")
