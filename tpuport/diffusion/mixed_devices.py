"""Let code that was written for a single device work on tensors of the host and of the
device at once.

The code of a pipeline knows a single device. Inside `allow_mixed()` it runs unchanged
while some of its tensors are on the device: an operation that meets one uploads the
host tensors beside it and stays on the device, one that asks for Python values or for
the host gets them, and what torchax has no lowering for is computed on the host.
Everything that is created from nothing (noise, zeros) is created on the host, with
torch's own random numbers.

Inside, a tensor on the device reports "cpu" as its device, as the pipeline does.
"""

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import torch
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch.overrides import TorchFunctionMode

from tpuport import compat
from tpuport.checkpoint.moving import fetch as to_host
from tpuport.compat.asked_values import writes_in_place
from tpuport.hardware import process_watch
from tpuport.internals.torch_internals import parse_to, torch_pytree, version_of
from tpuport.objects.state.python_values import host_version

logger = logging.getLogger("tpuport")

_HOST = torch.device("cpu")
_DEVICE_TYPES = ("jax", "privateuseone")
# Functions that ask for Python values, or for a tensor on the host.
_READS = frozenset(
    "cpu item tolist numpy __bool__ __float__ __int__ __index__ __complex__ __format__ __repr__ __str__ "
    "__array__ __contains__ __reversed__ __dlpack__ __reduce_ex__ equal allclose is_nonzero".split()
)
# TPUs have no double precision.
_HOST_RESULTS = _READS | {"double"}
# Functions that draw random numbers: on the host, so that they are torch's.
_RANDOM = frozenset(
    "randn_like rand_like randint_like bernoulli bernoulli_ multinomial normal normal_ uniform_ random_ exponential_ "
    "cauchy_ log_normal_ geometric_ poisson dropout dropout_ rrelu rrelu_".split()
)
# Properties that torch computes and that are tensors.
_TENSOR_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag"})


class _ThreadState(threading.local):
    """What this thread is inside of: its innermost mode, and how many suspensions of
    that.
    """

    mode: "MixedDevices | None" = None
    suspensions: int = 0


_state = _ThreadState()
_logged_functions: set[str] = set()


class _Upload(NamedTuple):
    """A host tensor's copy on the device, valid while the tensor has this version."""

    tensor: weakref.ref
    version: int
    copy: torch.Tensor


class MixedDevices(TorchFunctionMode):
    """The mode that `allow_mixed` enters.

    Args:
        mesh: where host tensors are uploaded to, whole on each of its devices; None for
            jax's default device.
    """

    def __init__(self, mesh: Mesh | None = None) -> None:
        super().__init__()
        # `jax.device_put` to None leaves an array where it is.
        self._sharding = mesh and NamedSharding(mesh, PartitionSpec())
        self._uploads: dict[int, _Upload] = {}  # by the tensor's id

    def __torch_function__(
        self,
        function: Callable,
        types: Any,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        """Run a function of torch where its operands are."""
        kwargs = kwargs or {}
        if _state.suspensions:
            return function(*args, **kwargs)
        if function is torch.device:
            return _without_device(torch.device(*args, **kwargs))
        if _names_device(kwargs.get("device")):
            kwargs = {**kwargs, "device": _HOST}
        if not any(map(compat.is_ported, tree_leaves((args, kwargs)))):
            return function(*map(_without_device, args), **kwargs)
        if has_tracers((args, kwargs)):
            return function(*args, **kwargs)
        with suspend():
            return self._run_mixed(function, args, kwargs)

    def _run_mixed(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        name = getattr(function, "__name__", str(function))
        if name in ("__get__", "__set__"):
            descriptor = getattr(function, "__self__", None)
            if getattr(descriptor, "__name__", "") in _TENSOR_PROPERTIES:
                return compat.on_device(function, args, {})
            return function(*args)
        if name == "to":
            return _to(args, kwargs)
        if name in _HOST_RESULTS:
            return function(*to_host_tree(args), **to_host_tree(kwargs))
        if name in _RANDOM or _writes_to_host(function, args, kwargs):
            return self._run_on_host(function, args, kwargs)
        return self._run_on_device(function, name, args, kwargs)

    def _run_on_device(
        self, function: Callable, name: str, args: tuple, kwargs: dict
    ) -> Any:
        try:
            return compat.on_device(function, *self.upload_tree((args, kwargs)))
        except (jax.errors.JaxRuntimeError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001
            # Whatever is wrong, torch decides: it raises its own error, or its result
            # is the right one.
            result = self._run_on_host(function, args, kwargs)
            reason = str(error).partition("\n")[0] or type(error).__name__
            if name not in _logged_functions:
                _logged_functions.add(name)
                logger.warning(
                    "torch.%s runs on the host, its tensors being copied there and back: %s",
                    name,
                    reason,
                )
            return result

    def _run_on_host(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        """The function on copies; what it writes into a copy is written to the device
        too.
        """
        copies = HostCopies()
        args, kwargs = copies.copy_tree((args, kwargs))
        result = function(*args, **kwargs)
        for tensor, host, is_written in copies:
            if is_written:
                compat.on_device(torch.Tensor.copy_, (tensor, self.upload(host)), {})
                # An operation in place returns the tensor that it wrote to.
                if result is host:
                    result = tensor
        return result

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """A host tensor on the device; the same copy again for as long as the tensor is
        not written to.
        """
        if compat.is_ported(tensor):
            return tensor
        version = host_version(tensor)
        upload = self._uploads.get(id(tensor))
        # The id of a tensor that was freed may be used again, which the weak reference
        # shows.
        if (
            upload is not None
            and upload.tensor() is tensor
            and upload.version == version
        ):
            return upload.copy
        copy = compat.wrap(
            process_watch.put(compat.to_jax(tensor), self._sharding), tensor.dtype
        )
        if version is not None:
            key, uploads = id(tensor), self._uploads
            reference = weakref.ref(tensor, lambda _: uploads.pop(key, None))
            uploads[key] = _Upload(reference, version, copy)
        return copy

    def upload_tree(self, tree: Any) -> Any:
        """Lists, tuples and dicts of tensors with each host tensor uploaded; other
        values unchanged.
        """
        return torch_pytree.tree_map_only(torch.Tensor, self.upload, tree)


class HostCopies:
    """Copies on the host of tensors on the device, one for each tensor, for code that
    may write to them.
    """

    def __init__(self) -> None:
        # By id: the tensor on the device, its copy, and the version of the copy.
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}

    def copy_tree(self, tree: Any) -> Any:
        """Lists, tuples and dicts in which copies replace the tensors on the device."""
        return torch_pytree.tree_map(self._copy, tree)

    def _copy(self, leaf: Any) -> Any:
        if not compat.is_ported(leaf):
            return leaf
        if id(leaf) not in self._copies:
            host = to_host(leaf)
            self._copies[id(leaf)] = leaf, host, version_of(host)
        return self._copies[id(leaf)][1]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, bool]]:
        """Each tensor on the device, its copy, and whether the copy was written to."""
        for tensor, host, version in self._copies.values():
            yield tensor, host, version_of(host) != version


def upload_tree(tree: Any) -> Any:
    """A tree with each host tensor on the device inside of `allow_mixed()`; elsewhere
    the tree itself.
    """
    mode = current_mode()
    return tree if mode is None else mode.upload_tree(tree)


def current_mode() -> MixedDevices | None:
    """The mode of this thread's innermost `allow_mixed()`; None outside, and while it
    is suspended.
    """
    return None if _state.suspensions else _state.mode


@contextlib.contextmanager
def allow_mixed(mesh: Mesh | None = None) -> Iterator[MixedDevices]:
    """Let torch code inside work on tensors of the host and of the device alike.

    Nested uses share the outermost one's copies of host tensors. A NumPy array that
    shares its memory with a tensor must not be written to inside: torch does not count
    such writes, and the copy on the device would stay.

    Args:
        mesh: where host tensors go that meet a tensor on the device; None for jax's
            default device.
    """
    outer = current_mode()
    if outer is not None:
        yield outer
        return
    # Before the mode is entered: what this imports and installs must not run under it.
    compat.environment()
    previous_mode, previous_suspensions = _state.mode, _state.suspensions
    mode = MixedDevices(mesh)
    _state.mode, _state.suspensions = mode, 0
    try:
        with mode:
            yield mode
    finally:
        _state.mode, _state.suspensions = previous_mode, previous_suspensions


@contextlib.contextmanager
def suspend() -> Iterator[None]:
    """Inside, `allow_mixed` does nothing: for code of tpuport that handles arrays
    itself, and for tracing.
    """
    _state.suspensions += 1
    try:
        yield
    finally:
        _state.suspensions -= 1


def to_host_tree(tree: Any) -> Any:
    """Nested lists, tuples and dicts with each tensor on the device copied to the
    host.
    """
    return torch_pytree.tree_map_only(torch.Tensor, to_host, tree)


def tree_leaves(tree: Any) -> Iterator[Any]:
    """Everything in nested lists, tuples and dicts, of subclasses too, which torch's
    own trees leave whole.
    """
    match tree:
        case dict():
            children = tree.values()
        case list() | tuple():
            children = tree
        case _:
            yield tree
            return
    for child in children:
        yield from tree_leaves(child)


def has_tracers(tree: Any) -> bool:
    """Whether a value in nested lists, tuples and dicts is being traced."""
    return any(isinstance(compat.as_jax(leaf), Tracer) for leaf in tree_leaves(tree))


def _names_device(value: Any) -> bool:
    # A torch.device is written as its name is: "jax:0".
    return (
        isinstance(value, torch.device | str)
        and str(value).partition(":")[0] in _DEVICE_TYPES
    )


def _without_device(value: Any) -> Any:
    """The host in place of torchax's device; any other value itself."""
    return _HOST if _names_device(value) else value


def _is_of_host(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not compat.is_ported(value)


def _writes_to_host(function: Callable, args: tuple, kwargs: dict) -> bool:
    """Whether the result goes into a tensor of the host, so that the other operands
    must come there.
    """
    targets = [kwargs.get("out")]
    if writes_in_place(function):
        targets.append(args[:1])
    return any(map(_is_of_host, tree_leaves(targets)))


def _to(args: tuple, kwargs: dict) -> Any:
    """`tensor.to(...)`: cast where the tensor is, then to the host if the call names a
    device.
    """
    tensor, *options = args
    for option in (*options, kwargs.get("other")):
        if isinstance(option, torch.Tensor):
            # Another tensor stands for its dtype and device; a tensor stays where it
            # is.
            return _cast(tensor, option.dtype)
    if not compat.is_ported(tensor):
        return tensor.to(*map(_without_device, options), **kwargs)
    # The parser of torch's modules knows every form of the call, but not `copy`.
    parsed_kwargs = dict(kwargs)
    parsed_kwargs.pop("copy", None)
    device, dtype, _, _ = parse_to(*options, **parsed_kwargs)
    if device is not None and device.type not in _DEVICE_TYPES:
        return to_host(tensor).to(device=device, dtype=dtype)
    return tensor if dtype is None else _cast(tensor, dtype)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Cast where the tensor is; on the host to double precision, which the device lacks
    unless jax runs with x64.
    """
    if not compat.is_ported(tensor):
        return tensor.to(dtype)
    device_dtype = compat.torch_dtype(compat.jax_dtype(dtype))
    if dtype.is_floating_point and device_dtype != dtype:
        return to_host(tensor).to(dtype)
    return compat.on_device(torch.Tensor.to, (tensor, device_dtype), {})
