"""The conditions of a guider (positive prompt, negative prompt) as one call of the model, shared over dp.

A pipeline with a guider calls its model once for each condition. Here the first of these calls runs the model on all
conditions, one after the other along the batch, and keeps what belongs to the others until their calls come. Which
call is whose is told by the tensors themselves: those of a condition are the objects that the guider has given out,
and every other argument must be the same in all of them. A call that fits nothing runs by itself.
"""

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as torch_pytree

from tpuport import compat
from tpuport.diffusion import mixed_devices
from tpuport.diffusion.compiled_components import CompiledForward

logger = logging.getLogger("tpuport")

Conditions = list[dict[str, Any]]
_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)


@contextlib.contextmanager
def batched(pipe: Any, state: Any) -> Iterator[None]:
    """Batch the conditions of the pipeline's guider where that shares them over dp, or where the user asked for it.

    Args:
        pipe: a ported pipeline; nothing happens where it has no guider, or one that changes the model between calls.
        state: its `Ported`.
    """
    guider, forward = getattr(pipe, "guider", None), _denoiser(pipe)
    if guider is None or forward is None or state.batch_guidance is False:
        yield
        return
    if _changes_models(guider):
        if state.batch_guidance:
            logger.warning(
                "%s changes the model between its conditions, which are not batched", type(guider).__name__
            )
        yield
        return
    batches = Batches(forward, None if state.batch_guidance else state.mesh.shape.get("dp", 1))
    own, held = guider.prepare_inputs, vars(guider).get("prepare_inputs")

    @functools.wraps(own)
    def prepare_inputs(*args: Any, **kwargs: Any) -> Any:
        given = own(*args, **kwargs)
        batches.begin([_condition(one, guider) for one in given])
        return given

    guider.prepare_inputs, forward.around = prepare_inputs, batches
    try:
        yield
    finally:
        forward.around = None
        if held is None:
            del guider.prepare_inputs
        else:
            guider.prepare_inputs = held


class Batches:
    """What stands around the model's forward while a pipeline runs.

    Args:
        forward: the model's.
        dp: conditions are batched where this divides their batch together and not the batch of one; None: always.
    """

    def __init__(self, forward: CompiledForward, dp: int | None) -> None:
        self._signature = inspect.signature(forward.original)
        self._dp = dp
        self._conditions: Conditions = []
        self._shared: dict[str, Any] = {}
        self._kept: dict[int, Any] = {}  # results by condition
        self._joined: dict[str, tuple[list[Any], torch.Tensor]] = {}

    def begin(self, conditions: Conditions) -> None:
        """A step begins; what is left of the one before is dropped."""
        self._conditions, self._shared, self._kept = conditions, {}, {}

    def __call__(self, run: Callable, args: tuple, kwargs: dict) -> Any:
        """The model's output for one condition, from `run(args, kwargs)` or kept from the call before."""
        given = dict(self._signature.bind(*args, **kwargs).arguments)
        for name, kind in self._signature.parameters.items():
            if kind.kind is inspect.Parameter.VAR_KEYWORD:
                given.update(given.pop(name, {}))
        place = self._place(given)
        if place is not None and place in self._kept and _same(self._others(given), self._shared):
            return self._kept.pop(place)
        self._kept = {}
        count = len(self._conditions)
        if place != 0 or count < 2 or not self._worth(given, count):
            return run(args, kwargs)
        joined = self._join(given, count)
        if joined is None:
            return run(args, kwargs)
        self._shared = self._others(given)
        first, *others = _split(run((), joined), count)
        self._kept = dict(enumerate(others, 1))
        return first

    def _place(self, given: dict[str, Any]) -> int | None:
        """Which condition's tensors these are; those that have had their turn are not meant again."""
        for place, condition in enumerate(self._conditions):
            if all(given.get(name) is value for name, value in condition.items()) and (
                not self._kept or place in self._kept
            ):
                return place
        return None

    def _others(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments that no condition decides, each with what it holds now."""
        names = self._conditions[0] if self._conditions else {}
        return {name: _content(value) for name, value in given.items() if name not in names}

    def _worth(self, given: dict[str, Any], count: int) -> bool:
        batch = _batch(given)
        return batch is not None and (
            self._dp is None or (self._dp > 1 and batch % self._dp != 0 and batch * count % self._dp == 0)
        )

    def _join(self, given: dict[str, Any], count: int) -> dict[str, Any] | None:
        """The arguments of one call for all conditions, None where these do not go together."""
        batch, joined = _batch(given), dict(given)
        for name, value in given.items():
            parts = [c.get(name, value) if name in c else value for c in self._conditions]
            if not any(isinstance(part, torch.Tensor) for part in parts):
                if not all(_equal(part, value) for part in parts):
                    return None
                continue
            if not all(
                isinstance(p, torch.Tensor) and (p.shape, p.dtype) == (value.shape, value.dtype)
                for p in parts
            ):
                return None
            if value.ndim and value.shape[0] == batch:
                joined[name] = self._concatenated(name, parts)
            elif any(part is not value for part in parts):
                return None
        return joined

    def _concatenated(self, name: str, parts: list[torch.Tensor]) -> torch.Tensor:
        """Along the batch, on the device; the same result again for the same tensors, as those of a prompt are."""
        contents = [_content(part) for part in parts]
        held = self._joined.get(name)
        if held is None or not all(_equal(a, b) for a, b in zip(held[0], contents, strict=True)):
            mode = mixed_devices.current()
            whole = torch.cat([mode.upload(part) for part in parts] if mode else parts)
            held = self._joined[name] = (contents, whole)
        return held[1]


def _denoiser(pipe: Any) -> CompiledForward | None:
    forward = vars(getattr(pipe, "transformer", None) or getattr(pipe, "unet", None) or object).get("forward")
    return forward if isinstance(forward, CompiledForward) else None


def _changes_models(guider: Any) -> bool:
    """Whether a guider puts hooks into the model for some of its conditions."""
    from diffusers.guiders.guider_utils import BaseGuidance

    return type(guider).prepare_models is not BaseGuidance.prepare_models


def _condition(given: Any, guider: Any) -> dict[str, Any]:
    """The tensors that one condition consists of, by the name of the model's argument."""
    held = given.as_dict() if hasattr(given, "as_dict") else dict(vars(given))
    return {name: value for name, value in held.items() if name != guider._identifier_key}


def _batch(given: dict[str, Any]) -> int | None:
    """The batch of a call: that of its first tensor with several dimensions."""
    sizes = [x.shape[0] for x in given.values() if isinstance(x, torch.Tensor) and x.ndim > 1]
    return sizes[0] if sizes else None


class _Held:
    """A tensor and what it held at a time: the array on the device, or the version on the host."""

    __slots__ = ("array", "tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.array = vars(tensor).get("_elem") if compat.is_ported(tensor) else None
        self.version = None if compat.is_ported(tensor) or tensor.is_inference() else tensor._version


def _content(value: Any) -> Any:
    return _Held(value) if isinstance(value, torch.Tensor) else value


def _equal(one: Any, other: Any) -> bool:
    """Whether two arguments are the same: tensors by identity, and unchanged since; plain values by value."""
    if isinstance(one, _Held) and isinstance(other, _Held):
        return one.tensor is other.tensor and one.array is other.array and one.version == other.version
    if isinstance(one, _PLAIN) and type(one) is type(other):
        return one == other
    return one is other


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(_equal(value, other[name]) for name, value in one.items())


def _split(out: Any, count: int) -> list[Any]:
    """A batched output as one output for each condition."""
    leaves, layout = torch_pytree.tree_flatten(out)
    arrays = [compat.as_jax(leaf) for leaf in leaves]
    sizes = [array.shape[0] // count for array in arrays]
    return [
        torch_pytree.tree_unflatten(
            [compat.wrap(a[place * n : (place + 1) * n]) for a, n in zip(arrays, sizes, strict=True)], layout
        )
        for place in range(count)
    ]
