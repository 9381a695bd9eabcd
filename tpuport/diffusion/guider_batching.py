"""The conditions of a guider (positive prompt, negative prompt) as a single call of the
model, divided over dp.

A pipeline with a guider calls its model once for each condition. Here the first of
these calls runs the model on all conditions, concatenated along the batch, and stores
the results of the others until their calls come. The tensors themselves show which call
belongs to which condition: those of a condition are the objects that the guider has
returned, and every other argument must be the same in all of them. A call that matches
nothing runs by itself.
"""

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import torch

from tpuport import compat
from tpuport.base.mappings import without
from tpuport.base.temporary import temporary_attributes
from tpuport.diffusion.compiled_components import ComponentCall
from tpuport.diffusion.mixed_devices import upload_tree
from tpuport.internals.diffusers_internals import condition_identifier
from tpuport.internals.torch_internals import torch_pytree
from tpuport.internals.torchax_internals import own_array
from tpuport.objects.state.python_values import host_version

logger = logging.getLogger("tpuport")

Conditions = list[dict[str, Any]]
_PLAIN_TYPES = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)


@contextlib.contextmanager
def batch_conditions(pipe: Any, state: Any) -> Iterator[None]:
    """Batch the conditions of the pipeline's guider if that divides them over dp, or if
    the user asked for it.

    Args:
        pipe: a ported pipeline; nothing happens if it has no guider, or one that
            changes the model between calls.
        state: its `PortedState`.
    """
    guider: Any = getattr(pipe, "guider", None)
    denoiser = getattr(pipe, "transformer", None) or getattr(pipe, "unet", None)
    forward = getattr(denoiser, "forward", None)
    if not (isinstance(forward, ComponentCall) and _can_batch(guider, state)):
        yield
        return
    dp = None if state.batch_guidance else state.mesh.shape.get("dp", 1)
    batcher = ConditionBatcher(forward, dp)
    original = guider.prepare_inputs

    @functools.wraps(original)
    def prepare_inputs(*args: Any, **kwargs: Any) -> Any:
        conditions = original(*args, **kwargs)
        batcher.begin_step(
            [_condition_tensors(condition, guider) for condition in conditions]
        )
        return conditions

    # Only while the pipeline runs, because a user may share the guider with other
    # pipelines.
    with (
        temporary_attributes(guider, prepare_inputs=prepare_inputs),
        temporary_attributes(forward, interceptor=batcher),
    ):
        yield


class ConditionBatcher:
    """Intercepts the calls of a model while a pipeline runs.

    Args:
        forward: the model's.
        dp: conditions are batched if this divides their common batch and not that of a
            single one; None: always.
    """

    def __init__(self, forward: ComponentCall, dp: int | None) -> None:
        self._signature = inspect.signature(forward.original)
        kinds = {
            parameter.kind: name
            for name, parameter in self._signature.parameters.items()
        }
        self._keywords_name = kinds.get(inspect.Parameter.VAR_KEYWORD, "")
        self._dp = dp
        self._conditions: Conditions = []
        self._shared_arguments: dict[str, Any] = {}
        self._results: dict[
            int, Any
        ] = {}  # of conditions whose call has not come yet, by their index
        self._concatenations: dict[str, tuple[list[_Snapshot], torch.Tensor]] = {}

    def begin_step(self, conditions: Conditions) -> None:
        """A step begins; results that are left from the step before are dropped."""
        self._conditions, self._shared_arguments, self._results = conditions, {}, {}

    def __call__(self, run: Callable, args: tuple, kwargs: dict) -> Any:
        """The model's output for a condition: from `run(args, kwargs)`, or stored at an
        earlier call.
        """
        arguments = self._bind(args, kwargs)
        index = self._find_condition(arguments)
        if (
            index in self._results
            and self._other_arguments(arguments) == self._shared_arguments
        ):
            return self._results.pop(index)
        # A call out of order: whatever is stored belongs to other arguments.
        self._results = {}
        batched_arguments = None
        if index == 0 and self._is_worthwhile(arguments):
            batched_arguments = self._batch_arguments(arguments)
        if batched_arguments is None:
            return run(args, kwargs)
        self._shared_arguments = self._other_arguments(arguments)
        first, *others = _split_batch(run((), batched_arguments), len(self._conditions))
        self._results = dict(enumerate(others, 1))
        return first

    def _bind(self, args: tuple, kwargs: dict) -> dict[str, Any]:
        """The arguments of a call by name, those of **kwargs too."""
        arguments = dict(self._signature.bind(*args, **kwargs).arguments)
        return arguments | arguments.pop(self._keywords_name, {})

    def _find_condition(self, arguments: dict[str, Any]) -> int | None:
        """The index of the condition that these tensors belong to; None if there is
        none.
        """
        # A condition without a stored result has had its call: equal tensors now belong
        # to a later one.
        for index in self._results or range(len(self._conditions)):
            if all(
                arguments.get(name) is value
                for name, value in self._conditions[index].items()
            ):
                return index
        return None

    def _other_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments that no condition decides, each with its present contents."""
        names = set().union(*self._conditions)
        return {
            name: _Snapshot(value)
            for name, value in arguments.items()
            if name not in names
        }

    def _is_worthwhile(self, arguments: dict[str, Any]) -> bool:
        batch, count = _batch_size(arguments), len(self._conditions)
        if batch is None or count < 2:
            return False
        # Every batch is a multiple of 1, so a mesh that does not divide it gains
        # nothing.
        return self._dp is None or (
            batch % self._dp != 0 and batch * count % self._dp == 0
        )

    def _batch_arguments(self, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """The arguments of a single call for all conditions; None if these do not go
        together.
        """
        batch = _batch_size(arguments)
        batched = dict(arguments)
        for name, value in arguments.items():
            parts = [condition.get(name, value) for condition in self._conditions]
            if getattr(value, "shape", ())[:1] == (batch,):
                if len(set(map(_tensor_kind, parts))) > 1:
                    return None
                batched[name] = self._concatenate(name, parts)
            # Without rows it can only be shared.
            elif any(_Snapshot(part) != _Snapshot(value) for part in parts):
                return None
        return batched

    def _concatenate(self, name: str, parts: list[torch.Tensor]) -> torch.Tensor:
        """Along the batch, on the device; cached for the same tensors, as those of a
        prompt are in every step.
        """
        snapshots = list(map(_Snapshot, parts))
        cached_snapshots, _ = self._concatenations.get(name, (None, None))
        if cached_snapshots != snapshots:
            self._concatenations[name] = (snapshots, torch.cat(upload_tree(parts)))
        return self._concatenations[name][1]


def _can_batch(guider: Any, state: Any) -> bool:
    if guider is None or state.batch_guidance is False:
        return False
    from diffusers.guiders.guider_utils import BaseGuidance

    # Some guiders put hooks into the model for some of their conditions.
    changes_model = type(guider).prepare_models is not BaseGuidance.prepare_models
    if changes_model and state.batch_guidance:
        logger.warning(
            "%s changes the model between its conditions, which are not batched",
            type(guider).__name__,
        )
    return not changes_model


def _condition_tensors(condition: Any, guider: Any) -> dict[str, Any]:
    """The tensors of a condition, by the name of the model's argument."""
    attributes = (
        condition.as_dict() if hasattr(condition, "as_dict") else vars(condition)
    )
    return without(attributes, {condition_identifier(guider)})


def _batch_size(arguments: dict[str, Any]) -> int | None:
    """The batch of a call: that of its first tensor with several dimensions."""
    return next(
        (
            value.shape[0]
            for value in arguments.values()
            if getattr(value, "ndim", 0) > 1
        ),
        None,
    )


class _Snapshot:
    """An argument and its contents at a time, to compare with that of a later call."""

    __slots__ = ("array", "value", "version")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.array = self.version = None
        # A write replaces the array of a tensor on the device, and counts up the
        # version of a tensor on the host.
        if compat.is_ported(value):
            self.array = own_array(value)
        elif isinstance(value, torch.Tensor):
            self.version = host_version(value)

    def __eq__(self, other: object) -> bool:
        """Tensors are equal if they are the same and unchanged; plain values by value,
        if the type is the same.
        """
        assert isinstance(other, _Snapshot)
        if type(self.value) in _PLAIN_TYPES:
            return (type(self.value), self.value) == (type(other.value), other.value)
        return (
            self.value is other.value
            and self.array is other.array
            and self.version == other.version
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def _tensor_kind(value: Any) -> tuple[Any, Any]:
    """Shape and dtype, which tensors that are concatenated have in common; None for
    anything else.
    """
    return getattr(value, "shape", None), getattr(value, "dtype", None)


def _split_batch(output: Any, count: int) -> list[Any]:
    """A batched output as `count` outputs, one for each condition."""
    leaves, layout = torch_pytree.tree_flatten(output)
    parts_by_leaf = [jnp.split(compat.as_jax(leaf), count) for leaf in leaves]
    # Turned around: for each condition its part of every leaf.
    return [
        torch_pytree.tree_unflatten(list(map(compat.wrap, parts)), layout)
        for parts in zip(*parts_by_leaf, strict=True)
    ]
