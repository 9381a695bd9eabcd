"""Crossing between torch tensors and jax arrays, in both directions, by view and by
copy.
"""

import dataclasses
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat.inference_mode import without_inference_mode
from tpuport.compat.runtime import environment
from tpuport.errors import MissingDtypeError, PortError
from tpuport.internals.torch_internals import outside_of_modes
from tpuport.internals.torchax_internals import set_array

# NumPy has no type of its own for these, so their bits cross as integers of the same
# width.
_BITS_BY_WIDTH = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16)}

_NARROW_INTEGERS = {
    jnp.dtype(jnp.int4): np.dtype(np.int8),
    jnp.dtype(jnp.uint4): np.dtype(np.uint8),
}


_NARROW = {
    torch.float64: torch.float32,
    torch.complex128: torch.complex64,
    torch.uint64: torch.uint32,
}


def jax_dtype(dtype: torch.dtype) -> np.dtype:
    """The dtype that an array holding this torch dtype has here: 64-bit types narrow
    unless jax runs with x64.

    Raises:
        PortError: jax has no such type.
    """
    name = str(dtype).removeprefix("torch.")
    try:
        return jax.dtypes.canonicalize_dtype(jnp.dtype(name))
    except TypeError:
        raise MissingDtypeError(
            f"jax has no dtype for {dtype}", fix=_without_dtype(dtype)
        ) from None


def _without_dtype(dtype: torch.dtype) -> str:
    if dtype == torch.complex32:
        return "compute in complex64: convert the halves first, x.float()"
    return "convert the tensor to bfloat16 first"


def torch_dtype(dtype: Any) -> torch.dtype:
    """The torch dtype of the same name as a jax dtype (anything that `jnp.dtype`
    accepts).

    Raises:
        PortError: torch has no such type.
    """
    name = jnp.dtype(dtype).name
    torch_dtype = getattr(torch, name, None)
    if not isinstance(torch_dtype, torch.dtype):
        raise PortError(
            f"torch has no dtype for {name}", fix="convert the array to bfloat16 first"
        )
    return torch_dtype


def device_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a tensor on the device that torch gives this one: integers of 64
    bits keep it, float64 becomes float32.
    """
    return dtype if jax.config.read("jax_enable_x64") else _NARROW.get(dtype, dtype)


def is_ported(tensor: Any) -> bool:
    """Whether a value is a torchax tensor."""
    # Nothing is torchax's before it has been imported, and importing it takes seconds.
    cls = device_class()
    return cls is not None and isinstance(tensor, cls)


def has_ported(values: Iterable[Any]) -> bool:
    """Whether a torchax tensor is among values, or in tuples and lists among them."""
    cls = device_class()
    return cls is not None and any(
        isinstance(value, cls)
        or (isinstance(value, tuple | list) and has_ported(value))
        for value in values
    )


def device_class() -> type | None:
    """torchax's class of tensors; None before it has been imported."""
    module = sys.modules.get("torchax.tensor")
    return None if module is None else module.Tensor


def has_array_form(tensor: torch.Tensor) -> bool:
    """Whether a tensor is, or can become, an array: sparse and torch's own quantized
    tensors cannot.
    """
    # What it is made of would be asked of torchax, which is slow, for each weight.
    if is_ported(tensor):
        return True
    return tensor.layout is torch.strided and not tensor.is_quantized


def wrap(array: jax.Array, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The torchax tensor of one array (tracers included), sharing it.

    Args:
        array: of any shape.
        dtype: that torch gives the tensor. An array of int32 may be one of int64, as it
            is by default, or of int32.
    """
    env = environment()
    from torchax.tensor import Tensor

    # torch takes no operation on a tensor of inference mode apart, in the mode and
    # after it.
    with without_inference_mode():
        return Tensor(array, env, dtype=dtype and device_dtype(dtype))  # type: ignore[reportCallIssue]


def wrap_all(
    arrays: Sequence[jax.Array], dtypes: Sequence[torch.dtype | None]
) -> list[torch.Tensor]:
    """As `wrap`, for the results of a program.

    Args:
        arrays: of any shapes.
        dtypes: of each, as `wrap` takes it.
    """
    if torch.is_inference_mode_enabled():
        with without_inference_mode():
            return wrap_all(arrays, dtypes)
    env, cls = environment(), device_class()
    assert cls is not None  # the environment is torchax's
    return [
        cls(array, env, dtype=dtype and device_dtype(dtype))
        for array, dtype in zip(arrays, dtypes, strict=True)
    ]


def check_fits(number: Any, dtype: Any) -> None:
    """Raise torch's error for a Python number that an integer dtype of the device does
    not hold; an unsigned one takes negative numbers, too.
    """
    if not isinstance(number, int | float) or not jnp.issubdtype(dtype, jnp.integer):
        return
    limits = jnp.iinfo(dtype)
    low = -int(limits.max) if limits.min == 0 else int(limits.min)
    # NaN is outside, too.
    if not low <= number <= limits.max:
        raise RuntimeError(
            f"value cannot be converted to type {jnp.dtype(dtype)} without overflow"
        )


def cast(array: jax.Array, dtype: Any) -> jax.Array:
    """The array in a dtype of the device.

    A number beyond an integer of 8 or 16 bits has its last bits, as in torch, where jax
    takes the largest integer; one beyond 32 bits, and NaN, is 0.
    """
    is_narrow = jnp.issubdtype(dtype, jnp.integer) and jnp.dtype(dtype).itemsize < 4
    if not is_narrow or not jnp.issubdtype(array.dtype, jnp.floating):
        return array.astype(dtype)
    fits = jnp.abs(array.astype(jnp.float32)) < 2.0**31
    return jnp.where(fits, array, 0).astype(jnp.int32).astype(dtype)


def assign(tensor: Any, array: jax.Array) -> Any:
    """Give a torchax tensor another array, which may have another shape, and return
    it.
    """
    set_array(tensor, array)
    with outside_of_modes():
        # torch's own functions ask for the sizes that it has noted down, not for the
        # array's.
        torch.Tensor.resize_(tensor, array.shape)
    return tensor


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class NarrowIntegers:
    """What a program returns for a tensor of torch.int32, of which the array alone
    would be torch's usual integers.

    Attributes:
        array: int32, of any shape.
    """

    array: Any


def as_torch(tree: Any) -> Any:
    """A jax pytree with its `jax.Array` leaves as torchax tensors, nothing copied,
    other leaves as they are.
    """
    return jax.tree.map(
        _wrap_leaf, tree, is_leaf=lambda node: isinstance(node, NarrowIntegers)
    )


def _wrap_leaf(leaf: Any) -> Any:
    if isinstance(leaf, NarrowIntegers):
        return wrap(leaf.array, torch.int32)
    return wrap(leaf) if isinstance(leaf, jax.Array) else leaf


def as_jax(tree: Any) -> Any:
    """A jax pytree with its torchax tensors as `jax.Array`s, nothing copied, other
    leaves as they are.
    """
    return jax.tree.map(lambda leaf: leaf.jax() if is_ported(leaf) else leaf, tree)


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """Copy a torch tensor on the host into a `jax.Array` of the same shape on jax's
    default device.

    64-bit integers become 32-bit ones unless jax runs with x64, and float64 becomes
    float32.

    Raises:
        PortError: an integer does not fit into 32 bits, or jax has no such dtype.
    """
    if is_ported(tensor):
        return tensor.jax()  # type: ignore[attr-defined]
    # A copy: on a CPU jax would share torch's memory, and later writes would show. By
    # NumPy, as jax copies nothing as long as it traces.
    return jnp.asarray(np.array(to_numpy(tensor)))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A torch tensor on the host as `to_jax` has it, as an array of NumPy that may
    share the tensor's memory.

    Raises:
        PortError: as `to_jax`.
    """
    if tensor.is_meta:
        raise PortError(
            "a tensor on the meta device has no values to copy",
            fix="load its weights first",
        )
    target = jax_dtype(tensor.dtype)
    # torch only marks conjugates and negations, and its marks are lost on the way.
    host = _to_numpy(
        tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    )
    if np.issubdtype(host.dtype, np.integer) and host.dtype != target:
        _check_range(host, target)
    # Cast on the host: asking jax for the wide type is what makes it warn.
    return host.astype(target, copy=False)


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a torch tensor on the host into a torchax tensor on jax's default device.

    Raises:
        PortError: as `to_jax`.
    """
    return wrap(to_jax(tensor), tensor.dtype)


def to_torch(array: jax.Array | np.ndarray | torch.Tensor) -> torch.Tensor:
    """Copy an array, or a torchax tensor (gathered from all its devices), into a torch
    tensor on the CPU, same shape and dtype.

    Integers of four bits become integers of eight, the smallest that torch computes
    with.
    """
    return _from_numpy(np.array(as_jax(array)), array)


def to_torch_unwritten(array: jax.Array | torch.Tensor) -> torch.Tensor:
    """As `to_torch`, for tensors that nobody writes to: an array of the CPU shares its
    memory.
    """
    host = np.asarray(as_jax(array))
    with warnings.catch_warnings():
        # torch warns of memory that must not be written to.
        warnings.simplefilter("ignore", UserWarning)
        return _from_numpy(host, array)


def _from_numpy(
    host: np.ndarray, array: jax.Array | np.ndarray | torch.Tensor
) -> torch.Tensor:
    if is_ported(array) and array.dtype is torch.int64:
        host = host.astype(np.int64)
    if host.dtype in _NARROW_INTEGERS:
        host = host.astype(_NARROW_INTEGERS[host.dtype])
    dtype = torch_dtype(host.dtype)
    try:
        return torch.from_numpy(host)
    except TypeError:
        bits, numpy_bits = _BITS_BY_WIDTH[dtype.itemsize]
        return torch.from_numpy(host.view(numpy_bits)).view(bits).view(dtype)


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    try:
        return tensor.numpy()
    except TypeError:
        bits, _ = _BITS_BY_WIDTH[tensor.dtype.itemsize]
        return (
            tensor.view(bits)
            .numpy()
            .view(jnp.dtype(str(tensor.dtype).removeprefix("torch.")))
        )


def _check_range(host: np.ndarray, target: np.dtype) -> None:
    if host.size == 0:
        return
    limits = np.iinfo(target)
    low, high = int(host.min()), int(host.max())
    if low < limits.min or high > limits.max:
        raise MissingDtypeError(
            f"{host.dtype} values from {low} to {high} do not fit into {target}",
            where=f"a tensor of shape {tuple(host.shape)}",
            fix="keep the values within 32 bits, or run jax with jax_enable_x64",
        )
