"""Whether torch's autograd records what runs on the device, and how.

Tensors on the device are subclasses of torch's: of each *operator* that reaches them
autograd has made a node before. A *function* with a lowering of its own is answered
above that, so that it is taken apart into operators while gradients are recorded, or,
where that would lose a kernel, is one node whose backward jax derives (`as_one_node`).

In a program gradients are recorded only if its caller asks for them: the programs of
forward passes alone keep the lowerings of functions.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.convert import as_jax, is_ported, jax_dtype, wrap
from tpuport.compat.tracing import is_tracing
from tpuport.internals.torch_internals import torch_pytree, without_subclass_functions

_is_asked_for: ContextVar[bool] = ContextVar("gradients in a program", default=False)


@contextlib.contextmanager
def gradients_recorded(is_asked_for: bool = True) -> Iterator[None]:
    """Traced. Let autograd record what the block computes, as far as torch would."""
    token = _is_asked_for.set(is_asked_for)
    try:
        yield
    finally:
        _is_asked_for.reset(token)


def may_record() -> bool:
    """Whether gradients are recorded here, if a tensor requires any."""
    return torch.is_grad_enabled() and (not is_tracing() or _is_asked_for.get())


def is_recorded(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether autograd records a call with these arguments."""
    if not may_record():
        return False
    # Else each question would go through torch's functions, which takes as long as an
    # operation.
    with without_subclass_functions():
        return _requires_gradient(args) or any(map(_requires_gradient, kwargs.values()))


def requires_gradient(values: Iterable[Any]) -> list[bool]:
    """Whether each of these values is a tensor that requires a gradient."""
    with without_subclass_functions():
        return [getattr(value, "requires_grad", False) for value in values]


def _requires_gradient(value: Any) -> bool:
    # Not by torch's trees: this looks at the arguments of every call.
    # By its class: what a mask selects says that it is a tensor, and is computed then.
    if issubclass(type(value), torch.Tensor):
        return value.requires_grad and is_ported(value)
    return isinstance(value, tuple | list) and any(map(_requires_gradient, value))


def as_one_node(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors on the device that computes with their arrays, as one node
    for autograd: jax derives its backward.

    All tensors that it computes with have to be among its arguments.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not may_record():
            return function(*args, **kwargs)
        leaves, structure = torch_pytree.tree_flatten((args, kwargs))
        places = [
            place
            for place, leaf in enumerate(leaves)
            if is_ported(leaf) and leaf.requires_grad
        ]
        if not places:
            return function(*args, **kwargs)
        node = _Node(function, leaves, structure, places)
        outputs = _Apply.apply(node, *(leaves[place] for place in places))
        return node.restore(outputs)

    call.is_one_node = True  # type: ignore[attr-defined]
    return call


def is_one_node(operator: Any) -> bool:
    """Whether what an environment runs for a function is a node for autograd."""
    return getattr(getattr(operator, "func", None), "is_one_node", False)


class _Node:
    """A call of a function, for `_Apply`.

    Args:
        leaves, structure: its arguments, flat.
        places: among `leaves`, of the tensors that require a gradient.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        leaves: list[Any],
        structure: Any,
        places: list[int],
    ) -> None:
        self._function = function
        self._leaves = leaves
        self._structure = structure
        self._places = places
        self._pull: Any = None
        self._forms: list[_Form] = []
        self._result_structure: Any = None
        self._others: list[jax.Array] = []

    def run(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The results that are tensors of floating dtype."""

        def compute(*arrays: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
            leaves = list(self._leaves)
            for place, array in zip(self._places, arrays, strict=True):
                leaves[place] = wrap(array, leaves[place].dtype)
            args, kwargs = torch_pytree.tree_unflatten(leaves, self._structure)
            results = self._function(*args, **kwargs)
            flat, self._result_structure = torch_pytree.tree_flatten(results)
            self._forms = [_Form.of(leaf) for leaf in flat]
            pairs = list(zip(self._forms, flat, strict=True))
            return (
                [as_jax(leaf) for form, leaf in pairs if form.is_differentiable],
                [as_jax(leaf) for form, leaf in pairs if form.is_other_tensor],
            )

        # jax differentiates the program of the function, so that no code of torch meets
        # values that are being differentiated.
        program = jax.jit(compute, inline=True)
        arrays, self._pull, others = jax.vjp(
            program, *map(as_jax, tensors), has_aux=True
        )
        self._others = others
        self._leaves = []
        return tuple(
            wrap(array, form.dtype)
            for array, form in zip(arrays, self._differentiable(), strict=True)
        )

    def _differentiable(self) -> list["_Form"]:
        return [form for form in self._forms if form.is_differentiable]

    def pull(self, cotangents: tuple[torch.Tensor | None, ...]) -> list[Any]:
        """The gradients of the tensors."""
        arrays = [
            jnp.zeros(form.shape, jax_dtype(cast(torch.dtype, form.dtype)))
            if cotangent is None
            else as_jax(cotangent)
            for form, cotangent in zip(self._differentiable(), cotangents, strict=True)
        ]
        return [wrap(array) for array in self._pull(arrays)]

    def restore(self, outputs: tuple[torch.Tensor, ...]) -> Any:
        """The results in the form that the function gave them."""
        differentiable, others = iter(outputs), iter(self._others)
        flat = [
            next(differentiable)
            if form.is_differentiable
            else wrap(next(others), form.dtype)
            if form.is_other_tensor
            else form.value
            for form in self._forms
        ]
        return torch_pytree.tree_unflatten(flat, self._result_structure)


class _Form(NamedTuple):
    """What a result of a function is.

    Attributes:
        value: itself, if it is no tensor on the device.
        dtype, shape: of a tensor.
    """

    value: Any
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, leaf: Any) -> "_Form":
        return (
            cls(None, leaf.dtype, tuple(leaf.shape)) if is_ported(leaf) else cls(leaf)
        )

    @property
    def is_differentiable(self) -> bool:
        return self.dtype is not None and (
            self.dtype.is_floating_point or self.dtype.is_complex
        )

    @property
    def is_other_tensor(self) -> bool:
        return self.dtype is not None and not self.is_differentiable


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, node: _Node, *tensors: torch.Tensor) -> Any:
        ctx.node = node
        ctx.set_materialize_grads(False)
        return node.run(tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, /, *cotangents: torch.Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, *ctx.node.pull(cotangents)
