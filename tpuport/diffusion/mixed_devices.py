"""Tensors of the host and of the device in one piece of code that knows only of one kind.

The code of a pipeline was written for one device. `mixed()` lets it run as it is while some of its tensors are on
the device: an operation that meets one uploads the host tensors beside it and stays on the device, one that asks for
Python values or for the host gets them, and what torchax has no lowering for is computed on the host. Everything
that is made out of nothing (noise, zeros) is made on the host, with torch's own random numbers.

Inside, a tensor on the device says that its device is "cpu", as the pipeline does.
"""

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import torch
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as torch_pytree

from tpuport import compat
from tpuport.errors import PortError

logger = logging.getLogger("tpuport")

_state = threading.local()
_logged: set[str] = set()
_DEVICE_TYPES = ("jax", "privateuseone")
# What asks for values, or for a tensor on the host.
_READS = frozenset(
    "cpu item tolist numpy __bool__ __float__ __int__ __index__ __complex__ __format__ __repr__ __str__ "
    "__array__ __contains__ __reversed__ __dlpack__ __reduce_ex__ equal allclose is_nonzero".split()
)
# What draws random numbers: on the host, so that they are torch's.
_RANDOM = frozenset(
    "randn_like rand_like randint_like bernoulli bernoulli_ multinomial normal normal_ uniform_ random_ exponential_ "
    "cauchy_ log_normal_ geometric_ poisson dropout dropout_ rrelu rrelu_".split()
)
# Methods that write into their first operand without a trailing underscore in their name.
_WRITES = frozenset(
    "__setitem__ __iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__ "
    "__ilshift__ __irshift__ __idiv__".split()
)


class Mixed(TorchFunctionMode):
    """The mode that `mixed` enters.

    Args:
        mesh: where host tensors are uploaded to, whole on each of its devices; None for jax's default device.
    """

    def __init__(self, mesh: Mesh | None = None) -> None:
        super().__init__()
        self._sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        # By id: the tensor, the version that was uploaded, and its copy on the device.
        self._uploaded: dict[int, tuple[weakref.ref, int, torch.Tensor]] = {}

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run one function of torch where its operands are."""
        kwargs = kwargs or {}
        if getattr(_state, "suspended", 0):
            return function(*args, **kwargs)
        if function is torch.device:
            return _as_host_device(torch.device(*args, **kwargs))
        tensors = [x for x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        ported = [x for x in tensors if compat.is_ported(x)]
        kwargs = _without_device(kwargs)
        if not ported:
            return function(*_host_devices(args), **kwargs)
        if any(isinstance(compat.as_jax(x), Tracer) for x in ported):
            return function(*args, **kwargs)
        with suspended():
            return self._mixed(function, args, kwargs)

    def _mixed(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        name = getattr(function, "__name__", str(function))
        if name == "__get__" or name == "__set__":
            return self._attribute(function, args)
        if name == "to":
            return _to(args, kwargs)
        if name in _READS or name == "double":
            return function(*hosted(args), **hosted(kwargs))
        if name in _RANDOM or _writes_to_host(name, args, kwargs):
            return self._on_host(function, args, kwargs)
        return self._on_device(function, name, args, kwargs)

    def _attribute(self, function: Callable, args: tuple) -> Any:
        """A property: of those that torch computes, the ones that give tensors need the device."""
        owner = getattr(function, "__self__", None)
        if getattr(owner, "__name__", "") in ("T", "mT", "H", "mH", "real", "imag"):
            return compat.on_device(function, args, {})
        return function(*args)

    def _on_device(self, function: Callable, name: str, args: tuple, kwargs: dict) -> Any:
        try:
            return compat.on_device(function, *self.uploaded((args, kwargs)))
        except (jax.errors.JaxRuntimeError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001
            # Whatever is wrong here, torch is the judge: it raises its own error, or its result is the right one.
            result = self._on_host(function, args, kwargs)
            if name not in _logged:
                _logged.add(name)
                logger.warning(
                    "torch.%s runs on the host, its tensors being copied there and back: %s",
                    name, str(error).partition("\n")[0] or type(error).__name__,
                )  # fmt: skip
            return result

    def _on_host(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        """The function on copies; what it writes into one of them is written to the device too."""
        copies: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}

        def copied(tensor: Any) -> Any:
            if not compat.is_ported(tensor):
                return tensor
            if id(tensor) not in copies:
                host = to_host(tensor)
                copies[id(tensor)] = (tensor, host, host._version)
            return copies[id(tensor)][1]

        args, kwargs = torch_pytree.tree_map(copied, (args, kwargs))
        result = function(*args, **kwargs)
        for tensor, host, version in copies.values():
            if host._version != version:
                compat.on_device(torch.Tensor.copy_, (tensor, self.upload(host)), {})
                result = tensor if result is host else result
        return result

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """A host tensor on the device; the same copy again for as long as the tensor is not written to."""
        if compat.is_ported(tensor):
            return tensor
        version = None if tensor.is_inference() else tensor._version
        held = self._uploaded.get(id(tensor))
        if held is not None and held[0]() is tensor and held[1] == version:
            return held[2]
        array = compat.to_jax(tensor)
        if self._sharding is not None:
            array = jax.device_put(array, self._sharding)
        copy = compat.wrap(array)
        if version is not None:
            key, kept = id(tensor), self._uploaded
            kept[key] = (weakref.ref(tensor, lambda _: kept.pop(key, None)), version, copy)
        return copy

    def uploaded(self, tree: Any) -> Any:
        """Lists, tuples and dicts of tensors with each host tensor uploaded; other values as they are."""
        return torch_pytree.tree_map(lambda x: self.upload(x) if isinstance(x, torch.Tensor) else x, tree)


def current() -> Mixed | None:
    """The mode of this thread's innermost `mixed()`, None outside of one and while it is suspended."""
    return None if getattr(_state, "suspended", 0) else getattr(_state, "mode", None)


@contextlib.contextmanager
def mixed(mesh: Mesh | None = None) -> Iterator[Mixed]:
    """Let torch code inside work on tensors of the host and of the device alike.

    Nested calls share the outermost one's copies of host tensors. A NumPy array that shares its memory with a tensor
    must not be written to inside: torch does not count such writes, and the copy on the device would stay.

    Args:
        mesh: where host tensors go that meet one of the device; None for jax's default device.
    """
    outer = current()
    if outer is not None:
        yield outer
        return
    compat.environment()  # what it imports and installs must not run under the mode
    before, paused = getattr(_state, "mode", None), getattr(_state, "suspended", 0)
    mode = Mixed(mesh)
    _state.mode, _state.suspended = mode, 0
    try:
        with mode:
            yield mode
    finally:
        _state.mode, _state.suspended = before, paused


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Inside, `mixed` does nothing: for code of ours that handles arrays itself, and for tracing."""
    _state.suspended = getattr(_state, "suspended", 0) + 1
    try:
        yield
    finally:
        _state.suspended -= 1


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the device as one of the host, whole; a host tensor as it is."""
    if not compat.is_ported(tensor):
        return tensor
    array = compat.as_jax(tensor)
    if not (array.is_fully_addressable or array.is_fully_replicated):
        raise PortError(
            "a part of this tensor is on the devices of another process",
            where=f"{array.dtype} {list(array.shape)}",
            fix="gather it first: jax.experimental.multihost_utils.process_allgather(array, tiled=True)",
        )
    return compat.to_torch(array)


def leaves(tree: Any) -> Iterator[Any]:
    """Everything in nested lists, tuples and dicts."""
    if isinstance(tree, (list, tuple)):
        for value in tree:
            yield from leaves(value)
    elif isinstance(tree, dict):
        yield from leaves(list(tree.values()))
    else:
        yield tree


def hosted(tree: Any) -> Any:
    """Nested lists, tuples and dicts with each tensor of the device brought to the host."""
    return torch_pytree.tree_map(lambda x: to_host(x) if compat.is_ported(x) else x, tree)


def _as_host_device(device: torch.device) -> torch.device:
    return torch.device("cpu") if device.type in _DEVICE_TYPES else device


def _names_device(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type in _DEVICE_TYPES
    return isinstance(value, str) and value.partition(":")[0] in _DEVICE_TYPES


def _without_device(kwargs: dict) -> dict:
    """Keyword arguments that name torchax's device name the host instead."""
    return {**kwargs, "device": torch.device("cpu")} if _names_device(kwargs.get("device")) else kwargs


def _host_devices(args: tuple) -> tuple:
    return tuple(torch.device("cpu") if _names_device(x) else x for x in args)


def _writes_to_host(name: str, args: tuple, kwargs: dict) -> bool:
    """Whether the result goes into a tensor of the host, so that the other operands must come there."""
    out = kwargs.get("out")
    if out is not None:
        return any(isinstance(x, torch.Tensor) and not compat.is_ported(x) for x in leaves(out))
    writes = name in _WRITES or (name.endswith("_") and not name.endswith("__"))
    return writes and bool(args) and isinstance(args[0], torch.Tensor) and not compat.is_ported(args[0])


def _to(args: tuple, kwargs: dict) -> Any:
    """`tensor.to(...)`: the dtype where the tensor is; then to the host, where a device was named."""
    tensor, *rest = args
    kwargs = dict(kwargs)
    like = next((x for x in (*rest, kwargs.pop("other", None)) if isinstance(x, torch.Tensor)), None)
    if like is not None:  # another tensor: of its dtype, and where it was
        return _cast(tensor, like.dtype)
    if not compat.is_ported(tensor):
        return tensor.to(*_host_devices(tuple(rest)), **kwargs)
    parse: Any = torch._C._nn._parse_to  # pyright: ignore[reportAttributeAccessIssue]
    device, dtype, _, _ = parse(*rest, **{k: v for k, v in kwargs.items() if k != "copy"})
    if device is not None and device.type not in _DEVICE_TYPES:
        return to_host(tensor).to(device=device, dtype=dtype)
    return tensor if dtype is None else _cast(tensor, dtype)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Where the tensor is; on the host for double precision, which the device has not unless jax runs with x64."""
    if not compat.is_ported(tensor):
        return tensor.to(dtype)
    held = compat.torch_dtype(compat.jax_dtype(dtype))
    if dtype.is_floating_point and held != dtype:
        return to_host(tensor).to(dtype)
    return compat.on_device(torch.Tensor.to, (tensor, held), {})
