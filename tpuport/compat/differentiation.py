"""What torch's autograd decides about gradients, where jax computes them.

jax differentiates what it sees: it stops at no `torch.no_grad()`, and knows neither the
backward of a `torch.autograd.Function`, nor the one that a custom operator has
registered, nor hooks. Under `no_grad` operators get tensors without their gradients
here; all else is refused where a tensor that is being differentiated meets it.
"""

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NoReturn

import torch

from tpuport.compat.convert import is_ported
from tpuport.compat.declarations import Call
from tpuport.compat.view_writes import written_by_name
from tpuport.errors import PortError
from tpuport.internals.jax_internals import DIFFERENTIATION, is_differentiated
from tpuport.internals.torch_internals import OpOverload, torch_pytree
from tpuport.internals.torchax_internals import ARRAY

# Whether torch's mode was set to record gradients where the differentiation began.
_begins_with_gradients: ContextVar[bool] = ContextVar(
    "begins with gradients", default=False
)
# Namespaces of operators that jax differentiates as torch does.
_OWN_OPERATORS = ("aten", "prims", "prim", "torchvision")
_JAX = "tpuport.compile(torchax.interop.jax_value_and_grad(loss))"
_saved: dict[tuple[Any, str], Any] = {}


def may_have_backward(function: Any) -> bool:
    """Whether this is an operator that may have a backward of its own."""
    return isinstance(function, OpOverload) and function.namespace not in _OWN_OPERATORS


def check_operator(call: Call) -> None:
    """Traced. PortError for an operator with a backward of its own that is given a
    tensor which is being differentiated.
    """
    if call.function.has_kernel_for_dispatch_key(torch._C.DispatchKey.Autograd):  # pyright: ignore[reportAttributeAccessIssue]
        _refuse_inside((call.args, call.kwargs), f"the backward of {call.function}")


def stop_gradients(call: Call) -> None:
    """Traced. Detach the arguments of an operator under `torch.no_grad()`.

    Raises:
        PortError: the operator writes to a tensor that is being differentiated, or it
            is not known whether all that is differentiated is under `no_grad`.
    """
    if torch.is_grad_enabled():
        return
    args, kwargs = call.args, call.kwargs
    if not _has_differentiated(args) and not (kwargs and _has_differentiated(kwargs)):
        return
    if not _begins_with_gradients.get():
        raise PortError(
            "torch.no_grad() is on while jax differentiates, and it is not known whether it was on before",
            fix=f"compute gradients by {_JAX}, inside of which torch records gradients until no_grad ends that",
        )
    if any(map(_is_differentiated, written_by_name(call.function, args, kwargs))):
        raise PortError(
            "under torch.no_grad() a tensor is written to in place that is being differentiated",
            fix="compute a new tensor, or write to x.detach().clone()",
        )
    call.args, call.kwargs = torch_pytree.tree_map_only(
        torch.Tensor, _detach, (args, kwargs)
    )


def _detach(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if _is_differentiated(tensor) else tensor


def _has_differentiated(value: Any) -> bool:
    # Not by torch's trees: this looks at the arguments of every operator.
    match value:
        case tuple() | list():
            return any(map(_has_differentiated, value))
        case dict():
            return any(map(_has_differentiated, value.values()))
    return _is_differentiated(value)


def _is_differentiated(value: Any) -> bool:
    """Whether this is a tensor on the device that jax is differentiating."""
    # Rows that a mask has selected have no array, and asking for one would compute it.
    return is_ported(value) and is_differentiated(vars(value).get(ARRAY))


def _refuse_inside(tree: Any, what: str) -> None:
    """PortError if a tensor in a tree is being differentiated, and torch would ask
    `what` for its gradient.
    """
    is_recorded = torch.is_grad_enabled() or not _begins_with_gradients.get()
    if is_recorded and _has_differentiated(tree):
        _refuse(what)


def _refuse(what: str) -> NoReturn:
    raise PortError(
        f"{what} would be left out: jax differentiates the operations themselves",
        fix="write it with operations whose own gradient is the one you mean, such as x + (y - x).detach(); or train "
        "on the host, tpuport.to_cpu(model)",
    )


def _value_and_grad(torch_function: Callable, *args: Any, **kwargs: Any) -> Any:
    """torchax's `jax_value_and_grad`, of a function inside of which torch's mode is to
    record gradients, whatever it is around the call.
    """
    DIFFERENTIATION.require()

    @functools.wraps(torch_function)
    def function(*inputs: Any, **options: Any) -> Any:
        token = _begins_with_gradients.set(True)
        try:
            with torch.enable_grad():
                return torch_function(*inputs, **options)
        finally:
            _begins_with_gradients.reset(token)

    return _saved[_interop(), "jax_value_and_grad"](function, *args, **kwargs)


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.autograd.Function.apply`."""
    _refuse_inside((args, kwargs), f"{cls.__qualname__}.backward")
    # A class method's function, for the class that it is called of.
    return _saved[torch.autograd.Function, "apply"].__func__(cls, *args, **kwargs)


def _set_up_output_hook(self: Any, args: Any) -> Any:
    """Of a module with backward hooks, after its forward."""
    _refuse_inside(args, f"the backward hook of {type(self.module).__name__}")
    return _saved[torch.utils.hooks.BackwardHook, "setup_output_hook"](self, args)


def _get_backward_hooks(self: torch.nn.Module) -> Any:
    """Of a module, before its forward: (its hooks, those registered in the old way, for
    which torch asks its result for a `grad_fn`).
    """
    hooks, old_hooks = _saved[torch.nn.Module, "_get_backward_hooks"](self)
    if old_hooks and _begins_with_gradients.get() and torch.is_grad_enabled():
        _refuse(f"the backward hook of {type(self).__name__}")
    return hooks, old_hooks


def _interop() -> Any:
    # Only here: torchax is imported when the environment is built, see `shim`.
    import torchax.interop

    return torchax.interop


_REPLACED: tuple[tuple[Any, str, Any], ...] = (
    (torch.autograd.Function, "apply", classmethod(_apply)),
    (torch.utils.hooks.BackwardHook, "setup_output_hook", _set_up_output_hook),
    (torch.nn.Module, "_get_backward_hooks", _get_backward_hooks),
)


def install() -> None:
    """Replace what torch and torchax differentiate with."""
    of_torchax = (_interop(), "jax_value_and_grad", _value_and_grad)
    for owner, name, function in (of_torchax, *_REPLACED):
        _saved[owner, name] = inspect.getattr_static(owner, name)
        setattr(owner, name, function)


def uninstall() -> None:
    """Restore what `install` replaced."""
    for (owner, name), former in _saved.items():
        setattr(owner, name, former)
    _saved.clear()
