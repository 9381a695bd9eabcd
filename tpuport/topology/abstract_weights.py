"""The weights of a model that is not there: shapes, dtypes and places on a described mesh, as `port` gives them."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, Final

import jax
import torch
from jax.sharding import Mesh, NamedSharding
from torch.overrides import TorchFunctionMode

from tpuport import compat
from tpuport.checkpoint.device_layout import (
    dtype_overrides,
    parameter_groups,
    plan_shardings,
    replicated_sharding,
)
from tpuport.errors import PortError
from tpuport.sharding import ShardingRules
from tpuport.trace_errors import first_line
from tpuport.trace_errors.libraries import Owner, is_installed
from tpuport.trace_errors.tracebacks import path_to

_LARGE: Final = 1 << 26


def built(model: Any) -> torch.nn.Module:
    """The model in evaluation mode; a function that builds one is called so that no parameter is allocated.

    Raises:
        PortError: it is neither, or the function fails, or builds something else.
    """
    if not isinstance(model, torch.nn.Module):
        if not callable(model):
            raise PortError(
                f"this is an object of class {type(model).__name__}, neither a model nor a function that builds one",
                where="model", fix="compile_for(lambda: Model(**config), inputs, topology=...)",
            )  # fmt: skip
        model = _called(model)
    if not isinstance(model, torch.nn.Module):
        raise PortError(
            f"the function built an object of class {type(model).__name__}, which is no torch.nn.Module",
            where="model", fix="let it return the model",
        )  # fmt: skip
    return model.eval().requires_grad_(False)


def _called(build: Callable[[], Any]) -> Any:
    """What a function of the user's builds, without values."""
    try:
        with unallocated():
            return build()
    except PortError:
        raise
    except Exception as error:
        raise PortError(
            f"the function that builds the model failed: {type(error).__name__}: {first_line(error)}",
            where=_place(error) or getattr(build, "__qualname__", "model"),
            fix="call it in Python: it fails there too",
        ) from error


def _place(error: Exception) -> str | None:
    """file, line N of the innermost call of the user's code, else of a model's library; none is tpuport's own."""
    frames = [frame for frame in path_to(error).frames if frame.owner > Owner.LIBRARY]
    outside = [frame for frame in frames if not is_installed(frame.file)] or frames
    return f"{outside[-1].file}, line {outside[-1].line}" if outside else None


class _Unfilled(TorchFunctionMode):
    """Large tensors without values are made on the meta device: a parameter begins as one, and is all of it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty and kwargs.get("device") is None:
            like = func(*args, **kwargs | {"device": "meta"})
            if like.numel() * like.itemsize >= _LARGE:
                return like
        return func(*args, **kwargs)


@contextlib.contextmanager
def unallocated() -> Iterator[None]:
    """Let modules that are made inside have their parameters on the meta device, and their buffers where they are.

    A parameter that two modules share stays one: accelerate's `init_empty_weights` makes it two, twice the memory.
    """
    register: Any = torch.nn.Module.register_parameter

    def without_values(module: torch.nn.Module, name: str, given: torch.nn.Parameter | None) -> None:
        register(module, name, given)
        if given is None or given.device.type == "meta":
            return
        with torch.no_grad():
            empty = given.to("meta")
        made: Any = torch.Tensor._make_subclass(type(given), empty, given.requires_grad)
        vars(made).update(vars(given))
        module._parameters[name] = made

    torch.nn.Module.register_parameter = without_values  # type: ignore[method-assign]
    try:
        with _Unfilled():
            yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


def abstract_weights(
    model: torch.nn.Module,
    mesh: Mesh,
    rules: ShardingRules | None,
    dtype: torch.dtype | None,
    allow: Any,
) -> dict[str, jax.ShapeDtypeStruct]:
    """Every parameter and buffer named as by `compilation.collect_weights`, placed where `port` would put it."""
    keep, saved = dtype_overrides(model, dtype) if dtype else None, model.state_dict().keys()

    def described_as(name: str, tensor: torch.Tensor) -> tuple[tuple[int, ...], Any]:
        cast = keep and dtype and tensor.is_floating_point() and name in saved
        return tuple(tensor.shape), device_dtype((keep(name) or dtype) if keep and cast else tensor.dtype)

    groups = parameter_groups(model)
    shapes: dict[str, jax.ShapeDtypeStruct] = {}
    for names in groups:
        shape = jax.ShapeDtypeStruct(*described_as(names[0], model.get_parameter(names[0])))
        shapes.update(dict.fromkeys(names, shape))
    shardings = plan_shardings(model, groups, shapes, mesh, rules, allow)
    found = {names[0]: placed(shapes[names[0]], shardings[names[0]]) for names in groups}
    for name, buffer in model.named_buffers():
        shape, kind = described_as(name, buffer)
        found[name] = jax.ShapeDtypeStruct(shape, kind, sharding=replicated_sharding(mesh))
    return found


def placed(shape: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    """The same shape and dtype, on these devices."""
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)


def device_dtype(dtype: Any) -> Any:
    """The dtype that a tensor has on the device: 64 bits become 32."""
    found = compat.jax_dtype(dtype) if isinstance(dtype, torch.dtype) else dtype
    return jax.dtypes.canonicalize_dtype(found)


def nbytes(value: Any) -> int:
    """Bytes of a whole array, wherever its shards are."""
    return prod(value.shape) * value.dtype.itemsize


def local_nbytes(value: Any) -> int:
    """Bytes of an array's shard on one device; all of it where it has no sharding."""
    shape = value.sharding.shard_shape(value.shape) if value.sharding is not None else value.shape
    return prod(shape) * value.dtype.itemsize


def bytes_by_dtype(weights: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of whole arrays by the name of their dtype, most first."""
    found: dict[str, int] = {}
    for value in weights.values():
        found[str(value.dtype)] = found.get(str(value.dtype), 0) + nbytes(value)
    return dict(sorted(found.items(), key=lambda item: -item[1]))
