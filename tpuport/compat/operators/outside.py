"""Tensors on the device outside of torchax's environment: operations run in it, and
what cannot run is explained.

torchax refuses every operation there and advises to enable it globally, after which
tensors of the host fail.
"""

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from jax.core import Tracer

from tpuport.base.temporary import temporary_attributes
from tpuport.compat import narrowing, randomness, view_steps
from tpuport.compat.convert import (
    cast,
    has_array_form,
    is_ported,
    jax_dtype,
    to_device,
    to_jax,
    to_torch,
    wrap,
)
from tpuport.compat.declarations import Method
from tpuport.compat.inference_mode import without_inference_mode
from tpuport.compat.replacements import original
from tpuport.compat.runtime import environment, on_device
from tpuport.errors import PortError
from tpuport.internals.torch_internals import (
    AsyncCollectiveTensor,
    torch_pytree,
    without_subclass_functions,
)
from tpuport.internals.torchax_internals import ARRAY, array_of

# A torchax tensor.
Ported = Any

# Of the operators that the environment takes; others are functions of somebody else.
NAMESPACES = frozenset({"aten", "_c10d_functional", "torchvision", "xla"})
_SMALL_INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.uint16}
# Of the names of its types: "torch.jax.FloatTensor", as "torch.cuda.FloatTensor".
_TYPE_PREFIX = "torch.jax."


class _Running(threading.local):
    """What this thread does.

    Attributes:
        is_inside: whether it runs an operation in the environment on behalf of code
            outside.
        takes_host_tensors: whether tensors of the host are constants.
    """

    is_inside = False
    takes_host_tensors = False


_running = _Running()


def host_tensors_as_constants() -> contextlib.AbstractContextManager[None]:
    """In the block, a tensor of the host that meets one of the device in an operation
    is a constant of the program.

    For a trace whose inputs decide shapes: a model computes with them on the host, and
    then with their results.
    """
    return temporary_attributes(_running, takes_host_tensors=True)


def takes_host_tensors() -> bool:
    """Whether this thread is in a block of `host_tensors_as_constants`."""
    return _running.takes_host_tensors


def _dispatch(
    cls: type, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
) -> Any:
    """torchax's `__torch_dispatch__`, which is reached outside of its environment, and
    by primitives of torch's own.
    """
    if func.namespace in NAMESPACES:
        dispatch = functools.partial(environment().dispatch, func, types, args, kwargs)
        return dispatch() if _running.is_inside else _run_inside(dispatch, args, kwargs)
    if str(func) == "prims.copy_strided.default":
        # Of what torch composes an operator from; strides are nothing on the device.
        return to_device(args[0])
    if _running.is_inside:
        # Its environment does not take this operator: what it says of itself ends the
        # loop.
        return refuse_operation(func)
    run = functools.partial(on_device, func, args, kwargs or {})
    return _run_inside(run, args, kwargs)


def _run_inside(run: Callable[[], Any], args: tuple, kwargs: dict | None) -> Any:
    from torchax.tensor import OperatorNotFound

    _running.is_inside = True
    try:
        return run()
    except OperatorNotFound as error:
        # The explainer of traces recognizes it, and has the line; there is no host to
        # compute it on.
        if any(map(is_traced, torch_pytree.tree_leaves((args, kwargs)))):
            raise
        name = (
            str(error)
            .removeprefix("Operator with name ")
            .removesuffix(" has no lowering")
        )
        raise PortError(
            f"{name} does not run on the device", fix="compute it on the host, x.cpu()"
        ) from None
    finally:
        _running.is_inside = False


def is_traced(leaf: Any) -> bool:
    """Whether this is a tensor of a program that is being traced."""
    return isinstance(getattr(leaf, ARRAY, None), Tracer)


def refuse_operation(operation: Any) -> Any:
    """PortError for what torch itself would do to a tensor."""
    raise PortError(
        "torch itself cannot work on a tensor that is on the device",
        where=str(operation),
        fix="tpuport.to_cpu(x) turns a result into a torch tensor, and takes a ported model back to the CPU; "
        "tpuport.generate(model, ...) and tpuport.compile(model)(...) run a model",
    )


def _to_text(tensor: Ported) -> str:
    """As torch prints a tensor on a device, or torchax a tensor that is traced."""
    if isinstance(array_of(tensor), Tracer):
        return f"Tensor({type(array_of(tensor))} {array_of(tensor)})"
    text = repr(to_torch(tensor))
    return f"{text[:-1]}, device='{tensor.device}')"


def _format(tensor: Ported, specification: str) -> str:
    """A tensor without dimensions is formatted as its number."""
    if tensor.ndim == 0 and not isinstance(array_of(tensor), Tracer):
        return format(array_of(tensor).item(), specification)
    return object.__format__(tensor, specification)


def _torch_function(
    cls: type, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
) -> Any:
    """Functions of torch that are called outside run in the environment, where some
    have a lowering of their own.
    """
    kwargs = kwargs or {}
    if func in narrowing.WITH_WIDE_STEPS:
        with narrowing.silenced():
            return _run_function(func, args, kwargs)
    return _run_function(func, args, kwargs)


def _run_function(func: Any, args: tuple, kwargs: dict) -> Any:
    if _has_inference_tensor((args, kwargs)):
        return _run_as_is(func, args, kwargs)
    with without_inference_mode():
        return _run_as_is(func, args, kwargs)


def _run_as_is(func: Any, args: tuple, kwargs: dict) -> Any:
    if _running.is_inside:
        with without_subclass_functions():
            return func(*args, **kwargs)
    return _run_inside(functools.partial(on_device, func, args, kwargs), args, kwargs)


def _has_inference_tensor(arguments: Any) -> bool:
    """Whether a tensor of the host is among them that may be written to in inference
    mode only.
    """
    if not torch.is_inference_mode_enabled():
        return False
    return any(host.is_inference() for host in _host_tensors(arguments))


def _host_tensors(arguments: Any) -> list[torch.Tensor]:
    leaves = torch_pytree.tree_leaves(arguments)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return list(itertools.filterfalse(is_ported, tensors))


def _reduce(tensor: Ported, protocol: int) -> Any:
    """Pickled, and saved by `torch.save`, as the tensor on the host; loading it needs
    no torchax.
    """
    return to_torch(tensor).__reduce_ex__(protocol)


def _to_jax(self: Any, tensors: Any) -> Any:
    """torchax's `t2j_iso`, which unwraps the operands of an operator; one on the host
    is named.
    """
    try:
        return torch_pytree.tree_map_only(torch.Tensor, _unwrap, tensors)
    except _OnHostError:
        on_host = _host_tensors(tensors)
        raise PortError(
            "expected all tensors to be on the same device, but an operation has one tensor on the device and one on "
            "the host",
            where=", ".join(
                f"{_without_form(host)}{host.dtype} {list(host.shape)} on the host"
                for host in on_host
            ),
            fix=_remedy(on_host),
        ) from None


def _remedy(on_host: list[torch.Tensor]) -> str:
    if not all(map(has_array_form, on_host)):
        return _MAKE_DENSE
    has_weight = any(isinstance(host, torch.nn.Parameter) for host in on_host)
    return _PORT if has_weight else _MOVE


_PORT = "a module that is used here has its weights on the host: module = tpuport.port(module)"
_MOVE = (
    'move one of them, x.to("jax") or y.cpu(), or create it on the device of the others, device=y.device; '
    "tpuport.compile(model) takes arguments from the host itself"
)
_MAKE_DENSE = (
    "the device has no such tensors: make it dense, x.to_dense(), before the model is ported (TPU114); or take the "
    "other to the host, y.cpu(), outside of compiled code"
)


class _OnHostError(Exception):
    """A tensor that cannot be unwrapped."""


def _without_form(tensor: torch.Tensor) -> str:
    """What keeps a tensor on the host: "sparse_coo "."""
    if has_array_form(tensor):
        return ""
    return f"{str(tensor.layout).removeprefix('torch.')} "


def _unwrap(tensor: torch.Tensor) -> Any:
    # Also a weight that is a row of a stacked array: it has no array of its own, and
    # says so.
    array = getattr(tensor, "jax", None)
    if array is not None:
        return array()
    if isinstance(tensor, AsyncCollectiveTensor):
        return _unwrap(tensor.wait())
    if tensor.numel() != 1:
        if _running.takes_host_tensors:
            return to_jax(tensor)
        raise _OnHostError
    # As in torch, a number takes no part in what dtype the result has.
    return to_jax(tensor) if tensor.ndim else tensor.item()


def _to_copy(self: Any, tensor: Any, dtype: torch.dtype | None, device: Any) -> Any:
    """torchax's `_to_copy`, for all names of a device. What is on the device stays
    there if "cuda" is named.
    """
    move: Callable[..., Any] = original("Environment", "_to_copy")
    if not is_ported(tensor) and randomness.is_traced():
        # A constant of the program would share the memory, and be what is written there
        # later.
        tensor = tensor.clone()
    if is_ported(tensor) and device is not None:
        kind = "jax" if isinstance(device, int) else torch.device(device).type
        device = "jax" if kind == "cuda" else kind
        # The array does not say how wide torch's integers are.
        dtype = dtype or tensor.dtype
    if is_ported(tensor) and dtype is not None and dtype in _SMALL_INTEGERS:
        tensor = wrap(cast(tensor.jax(), jax_dtype(dtype)), dtype)
    return move(self, tensor, dtype, device)


def _to(self: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`tensor.to(...)`, which may be the tensor itself unless a copy is asked for."""
    move: Callable[..., Any] = original("Environment", "_torch_Tensor_to")
    moved = move(self, args, kwargs)
    # By position: non_blocking, copy.
    flags = [value for value in args if isinstance(value, bool)]
    is_copy = kwargs.get("copy", len(flags) == 2 and flags[1])
    return moved.clone() if is_copy and moved is args[0] else moved


def without_values(function: Any, args: tuple, kwargs: dict) -> torch.Tensor | None:
    """What `tensor.to("meta")` gives; None for all else.

    Only for the method: to torch's own functions, which move by operators, a tensor on
    the device is a meta tensor.
    """
    if function is not torch.Tensor.to or not is_ported(args[0]):
        return None
    targets = [*args[1:], *kwargs.values()]
    if not any(map(_is_meta, targets)):
        return None
    dtypes = [target for target in targets if isinstance(target, torch.dtype)]
    dtypes += [target.dtype for target in targets if isinstance(target, torch.Tensor)]
    return view_steps.on_twins(
        torch.empty, args[0].shape, dtype=(*dtypes, args[0].dtype)[0], device="meta"
    )


def _is_meta(target: Any) -> bool:
    if isinstance(target, torch.Tensor):
        return target.is_meta and not is_ported(target)
    return (
        isinstance(target, str | torch.device) and torch.device(target).type == "meta"
    )


def _stay(tensor: Ported, *args: Any, **kwargs: Any) -> Ported:
    """`tensor.cuda()`: the accelerator is where it is."""
    return tensor


def _cpu(tensor: Ported, **options: Any) -> torch.Tensor:
    """`tensor.cpu()`. In `torch.inference_mode` torch does not take it apart, and
    nothing moves what is left.
    """
    if torch.is_inference_mode_enabled():
        return tensor.to("cpu", **options)
    return torch.Tensor.cpu(tensor, **options)


def _type(tensor: Ported, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`x.type()` and `x.type(name)`: the name has the device, as those of a GPU's
    tensors have.
    """
    if dtype is None:
        name = view_steps.on_twins(lambda: torch.empty(0, dtype=tensor.dtype).type())
        return name.replace("torch.", _TYPE_PREFIX, 1)
    device, _, name = str(dtype).rpartition(".")
    if not isinstance(dtype, str) or f"{device}." not in (_TYPE_PREFIX, "torch.cuda."):
        return torch.Tensor.type(tensor, dtype, *args, **kwargs)
    return tensor.to(
        view_steps.on_twins(lambda: torch.empty(0).type(f"torch.{name}").dtype)
    )


def _refuse_mesh() -> Any:
    """torch.distributed asks whether the device is ready, for `init_device_mesh`,
    DTensor and FSDP.
    """
    raise PortError(
        "torch.distributed does not reach the device, so it has no mesh, DTensor or FSDP there",
        fix="mesh = tpuport.create_mesh(tp=8); tpuport.port(model, mesh=mesh, rules=...) shards a model by its own "
        "plan or by rules",
    )


def _to_numpy(tensor: Ported, *, force: bool = False) -> Any:
    """As torch's, `force=True` takes a tensor with a gradient too."""
    array = original("Tensor", "numpy")(tensor.detach() if force else tensor)
    return array.astype(np.int64) if tensor.dtype is torch.int64 else array


def _to_host(environment: Any, arrays: Any) -> Any:
    """torchax's `j2t_copy`. Its tensors share the memory of their arrays, so that a
    write to one changed both.
    """
    return torch_pytree.tree_map_only(jax.Array, to_torch, arrays)


LOWERINGS = ()
METHODS = (
    Method(
        "Tensor",
        "__torch_dispatch__",
        classmethod(_dispatch),
        "refuses every operation outside",
    ),
    Method(
        "Tensor",
        "__torch_function__",
        classmethod(_torch_function),
        "refuses every function outside",
    ),
    Method("Tensor", "__format__", _format, "formats no number"),
    Method("Tensor", "__repr__", _to_text, "shows the type of the array inside"),
    Method("Tensor", "__str__", _to_text, "shows the type of the array inside"),
    Method("Tensor", "numpy", _to_numpy, "has no force="),
    Method("Tensor", "cpu", _cpu, "stays on the device in `torch.inference_mode`"),
    Method("Tensor", "cuda", _stay, "looks for a GPU"),
    Method("Tensor", "get_device", lambda tensor: 0, "says that it is on a CPU"),
    Method("Tensor", "type", _type, "names a device that no tensor can be moved to"),
    Method(
        "device_module",
        "is_initialized",
        _refuse_mesh,
        "is not asked whether it can communicate",
    ),
    Method(
        "device_module",
        "is_available",
        lambda: False,
        "lets torch pin memory and copy models to replicas",
    ),
    Method("Environment", "_to_copy", _to_copy, "knows few names of a device"),
    Method("Environment", "_torch_Tensor_to", _to, "copies nothing with copy=True"),
    Method("Tensor", "__reduce_ex__", _reduce, "cannot be pickled"),
    Method(
        "Environment",
        "j2t_copy",
        _to_host,
        "gives tensors that share memory with arrays of jax",
    ),
    Method(
        "Environment",
        "t2j_iso",
        _to_jax,
        "its message does not name the operand that is on the host",
    ),
)
