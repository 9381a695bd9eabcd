"""Tensors created from Python values, with the dtype that torch infers from all of
them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.core import Tracer

from tpuport.compat import deferral
from tpuport.compat.convert import (
    as_jax,
    assign,
    check_fits,
    is_ported,
    jax_dtype,
    to_device,
    to_jax,
    wrap,
)
from tpuport.compat.declarations import Lowering, Method, on_arrays
from tpuport.compat.view_steps import on_twins
from tpuport.internals.torch_internals import reference_function
from tpuport.internals.torchax_internals import initialize_tensor

Number = int | float


def tensor(
    data: Any, *, dtype: torch.dtype | None = None, **placement: Any
) -> torch.Tensor:
    """`torch.tensor(data)` as a torchax tensor.

    Args:
        data: numbers, nested lists of them, an array or a tensor; 0-dimensional tensors
            count as numbers.
        dtype: inferred from all the values if None.
        placement: device, requires_grad and pin_memory; the tensor goes where jax puts
            arrays.
    """
    del placement
    if _contains_ported(data):
        array = to_jax(data) if isinstance(data, torch.Tensor) else _stack(data)
        if dtype is not None:
            array = array.astype(jax_dtype(dtype))
        return wrap(array, dtype or getattr(data, "dtype", None))
    if isinstance(data, torch.Tensor):
        return to_device(on_twins(data.to, dtype or data.dtype))
    # torch itself infers the dtype.
    return to_device(on_twins(torch.tensor, data, dtype=dtype))


def as_tensor(
    data: Any, dtype: torch.dtype | None = None, device: Any = None
) -> torch.Tensor:
    """`torch.as_tensor(data)` as a torchax tensor; a torchax tensor of that dtype is
    returned itself.
    """
    if is_ported(data) and dtype in (None, data.dtype):
        return data
    if isinstance(data, np.ndarray):
        data = torch.from_numpy(data.copy())
    return tensor(data, dtype=dtype, device=device)


def asarray(
    obj: Any,
    *,
    dtype: torch.dtype | None = None,
    copy: bool | None = None,
    **placement: Any,
) -> torch.Tensor:
    """`torch.asarray(obj)`; a torchax tensor of that dtype is returned itself, unless
    copied.
    """
    if placement.get("device") != "jax" and not _contains_ported(obj):
        # The host's, where no device is named.
        return on_twins(torch.asarray, obj, dtype=dtype, copy=copy, **placement)
    return tensor(obj, dtype=dtype) if copy else as_tensor(obj, dtype)


def new_tensor(
    like: torch.Tensor, data: Any, *, dtype: torch.dtype | None = None, **placement: Any
) -> torch.Tensor:
    """`like.new_tensor(data)`, of `like`'s dtype by default."""
    return tensor(data, dtype=dtype or like.dtype, **placement)


def full(
    size: Sequence[int],
    fill_value: bool | int | float | complex,
    *,
    dtype: torch.dtype | None = None,
    **placement: Any,
) -> torch.Tensor:
    """`torch.full(size, fill_value)`.

    Raises:
        OverflowError: an integer that 32 bits do not hold.
    """
    value = as_jax(fill_value)
    # Of a tensor, too, its number decides, which has torch's default width.
    dtype = dtype or _number_dtype(value)
    result = wrap(_filled(tuple(size), value, jax_dtype(dtype)), dtype)
    return result.requires_grad_(placement.get("requires_grad", False))


def _number_dtype(value: Any) -> torch.dtype:
    """The dtype that torch gives a number, of Python or of the device."""
    kind = value.dtype if isinstance(value, jax.Array) else np.asarray(value).dtype
    return torch.tensor(kind.type(0).item()).dtype


def _filled(size: tuple[int, ...], value: Any, dtype: np.dtype) -> jax.Array:
    if isinstance(value, int) and dtype == np.int32:
        # Raises, where jax would cut off the bits that do not fit.
        value = np.int32(value)
    check_fits(value, dtype)
    return jnp.full(size, deferral.array_of_float(value), dtype)


def fill(
    x: jax.Array, value: Any, *, dtype: torch.dtype | None = None, **placement: Any
) -> jax.Array:
    """Traced. A value in the shape of x, and in its dtype by default."""
    del placement
    return _filled(x.shape, value, x.dtype if dtype is None else jax_dtype(dtype))


def arange(*bounds: Number, **options: Any) -> torch.Tensor:
    """`torch.arange`, whose end can be named without a start."""
    from torchax.ops.ops_registry import all_torch_functions

    if not bounds:
        options.setdefault("start", 0)
    form = _form_of_range(bounds, options)
    if form is not None and form.dtype in _HALVES:
        return _range_of_halves(form, bounds, options)
    return on_arrays(all_torch_functions[torch.arange].func)(*bounds, **options)


def _form_of_range(bounds: Sequence[Any], options: dict[str, Any]) -> Any:
    """A meta tensor of the size and dtype that torch gives a range of numbers; None for
    one whose bounds are tensors.
    """
    values = [*bounds, *map(options.get, _BOUNDS)]
    if any(isinstance(value, torch.Tensor) for value in values):
        return None
    return on_twins(torch.arange, *bounds, **options | {"device": "meta"})


def _range_of_halves(
    form: torch.Tensor, bounds: Sequence[Number], options: dict[str, Any]
) -> torch.Tensor:
    """A range computed in float32: halves have too few digits for its bounds, and for
    counting its elements.
    """
    names = _BOUNDS if len(bounds) > 1 else ("end",)
    named = {"start": 0, "step": 1} | options | dict(zip(names, bounds, strict=False))
    counts = jnp.arange(form.shape[0], dtype=jnp.float32)
    numbers = named["start"] + named["step"] * counts
    result = wrap(numbers.astype(jax_dtype(form.dtype)), form.dtype)
    return result.requires_grad_(bool(options.get("requires_grad")))


_BOUNDS = ("start", "end", "step")
_HALVES = {torch.bfloat16, torch.float16}


def empty_permuted(
    size: Sequence[int],
    physical_layout: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    **placement: Any,
) -> torch.Tensor:
    """`torch.empty_permuted`; an array on the device has no layout of its own."""
    del placement
    if sorted(physical_layout) != list(range(len(size))):
        raise RuntimeError(
            f"empty_permuted() expects a permutation of {len(size)} axes, not {physical_layout}"
        )
    dtype = dtype or torch.get_default_dtype()
    return wrap(jnp.zeros(size, jax_dtype(dtype)), dtype)


def arange_out(
    start: Number, end: Number, step: Number = 1, *, out: torch.Tensor
) -> torch.Tensor:
    """`torch.arange(start, end, step, out=out)`, as which torch runs
    `torch.arange(..., device="jax")`.
    """
    return _fill(out, torch.arange, start, end, step)


def range_out(
    start: Number, end: Number, step: Number = 1, *, out: torch.Tensor
) -> torch.Tensor:
    """`torch.range(start, end, step, out=out)`."""
    return _fill(out, _aten.range.step, start, end, step)


def eye_out(n: int, m: int | None = None, *, out: torch.Tensor) -> torch.Tensor:
    """`torch.eye(n, m, out=out)`."""
    return _fill(out, torch.eye, n, n if m is None else m)


def linspace_out(
    start: Number, end: Number, steps: int, *, out: torch.Tensor
) -> torch.Tensor:
    """`torch.linspace(start, end, steps, out=out)`."""
    return _fill(out, torch.linspace, start, end, steps)


def logspace_out(
    start: Number, end: Number, steps: int, base: Number = 10.0, *, out: torch.Tensor
) -> torch.Tensor:
    """`torch.logspace(start, end, steps, base, out=out)`."""
    return _fill(out, torch.logspace, start, end, steps, base)


def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: torch.dtype | None = None,
    **placement: Any,
) -> torch.Tensor:
    """`torch.linspace`; integers, whose ends are cut off first, by torch itself where a
    program does not compute them.
    """
    if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
        bounds = list(map(as_jax, (start, end)))
        if _are_known(bounds):
            low, high = (np.asarray(bound).item() for bound in bounds)
            host = on_twins(torch.linspace, low, high, steps, dtype=dtype, device="cpu")
            return to_device(host)
        first, last = map(jnp.trunc, bounds)
        values = _cut_off(jnp.linspace(first, last, steps, dtype=jnp.float32))
        return wrap(values.astype(jax_dtype(dtype)), dtype)
    return reference_function("linspace")(start, end, steps, dtype=dtype, **placement)


def _cut_off(values: jax.Array) -> jax.Array:
    """Floats as integers, of which one that is whole does not become the one below."""
    nearest = jnp.round(values)
    is_whole = jnp.abs(values - nearest) < 1e-5 * jnp.maximum(jnp.abs(nearest), 1)
    return jnp.trunc(jnp.where(is_whole, nearest, values))


def _are_known(values: list[Any]) -> bool:
    return not any(isinstance(value, Tracer) for value in values)


def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: Number = 10.0,
    *,
    dtype: torch.dtype | None = None,
    **placement: Any,
) -> torch.Tensor:
    """`torch.logspace` between ends that are tensors; by torch itself where a program
    does not compute them.
    """
    del placement
    bounds = list(map(as_jax, (start, end)))
    if dtype is None:
        is_complex = any(map(jnp.iscomplexobj, bounds))
        dtype = (
            torch.get_default_dtype().to_complex()
            if is_complex
            else torch.get_default_dtype()
        )
    if _are_known(bounds):
        low, high = (np.asarray(bound).item() for bound in bounds)
        host = on_twins(
            torch.logspace, low, high, steps, base, dtype=dtype, device="cpu"
        )
        return to_device(host)
    target = jax_dtype(dtype)
    is_whole = jnp.issubdtype(target, jnp.integer)
    first, last = map(jnp.trunc, bounds) if is_whole else bounds
    exponents = jnp.linspace(
        first, last, steps, dtype=jnp.promote_types(target, jnp.float32)
    )
    values = jnp.power(base, exponents)
    if is_whole:
        values = _cut_off(values)
    return wrap(values.astype(target), dtype)


def _fill(
    out: torch.Tensor, function: Callable[..., torch.Tensor], *args: Any
) -> torch.Tensor:
    """Write what torch itself computes on the host."""
    return assign(out, to_jax(on_twins(function, *args, dtype=out.dtype, device="cpu")))


def _contains_ported(data: Any) -> bool:
    if isinstance(data, (list, tuple)):
        return any(map(_contains_ported, data))
    return is_ported(data)


def _stack(data: Any) -> jax.Array:
    """Nested lists with tensors in them as one array, promoted as jax promotes numbers.

    Raises:
        ValueError: a tensor has more than one element, which torch refuses too.
    """
    if isinstance(data, (list, tuple)):
        return jnp.stack(list(map(_stack, data)))
    if isinstance(data, torch.Tensor):
        if data.numel() != 1:
            raise ValueError(
                "only one element tensors can be converted to Python scalars"
            )
        return to_jax(data).reshape(())
    return jnp.asarray(as_jax(data))


_aten = torch.ops.aten
_CUT_OFF = "cuts an integer off that 32 bits do not hold"
_OUT = "has no lowering, and torch makes tensors on another device by it"
LOWERINGS = (
    Lowering(
        torch.arange, arange, "does not take an end that is named without a start"
    ),
    Lowering(
        torch.empty_permuted, empty_permuted, "takes axes that are not a permutation"
    ),
    Lowering(torch.full, full, _CUT_OFF),
    Lowering(torch.ops.aten.full.default, full, "warns of 64 bits"),
    Lowering(_aten.full_like.default, on_arrays(fill), _CUT_OFF),
    Lowering(_aten.fill.Scalar, on_arrays(fill), _CUT_OFF),
    Lowering(_aten.fill.Tensor, on_arrays(fill), _CUT_OFF),
    Lowering(
        torch.ops.aten.empty_permuted.default,
        empty_permuted,
        "takes axes that are not a permutation",
    ),
    Lowering(_aten.arange.start_out, arange_out, _OUT),
    Lowering(_aten.arange.out, lambda end, *, out: arange_out(0, end, out=out), _OUT),
    Lowering(_aten.range.out, range_out, _OUT),
    Lowering(_aten.eye.out, lambda n, *, out: eye_out(n, out=out), _OUT),
    Lowering(_aten.eye.m_out, eye_out, _OUT),
    Lowering(_aten.linspace.out, linspace_out, _OUT),
    Lowering(_aten.logspace.out, logspace_out, _OUT),
    *(
        Lowering(
            getattr(_aten.linspace, overload), linspace, "rounds ends of integers late"
        )
        for overload in ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
    ),
    *(
        Lowering(getattr(_aten.logspace, overload), logspace, "computes in float64")
        for overload in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
    ),
    Lowering(
        torch.tensor,
        tensor,
        "takes its dtype from the first number alone: [1, 2.5] becomes [1, 2]",
    ),
    Lowering(torch.as_tensor, as_tensor, "takes its dtype from the first number alone"),
    Lowering(torch.asarray, asarray, "has no lowering, and torch reads the values"),
    Lowering(torch.Tensor.new_tensor, new_tensor, "gives a tensor without values"),
)


def _init_tensor(
    tensor: Any,
    elem: Any = None,
    env: Any = None,
    requires_grad: bool = False,
    dtype: torch.dtype | None = None,
) -> None:
    initialize_tensor(tensor, elem, env)


METHODS = (
    Method(
        "Tensor", "__init__", _init_tensor,
        "Python calls it with the sizes of `torch.Tensor(3, 4)`, which torch has made by then",
    ),
)  # fmt: skip
