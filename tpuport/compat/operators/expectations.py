"""What torch makes of an operator's arguments, asked before it runs on the device: an
error, or dtypes and layouts.

torch's kernels for meta tensors compute everything about a result but its values. jax
is more lenient than torch (it promotes where torch refuses, and clamps or broadcasts),
so an error is torch's own; and a lowering that gives another dtype than torch has its
result cast. Strides of results decide which of their views torch copies.
"""

import collections
import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import torch
import torch.overrides

from tpuport.compat import aliasing, autocast, deferral, narrowing
from tpuport.compat.convert import device_dtype, has_ported, is_ported, jax_dtype
from tpuport.compat.declarations import Call
from tpuport.compat.operators import integer_dtypes, integer_overflow
from tpuport.compat.operators.fallbacks import find_operator
from tpuport.compat.operators.lowered_calls import described, name_of
from tpuport.compat.view_steps import VIEWS, VIEWS_IN_PLACE, on_twins
from tpuport.errors import MissingDtypeError, PortError
from tpuport.internals.torch_internals import OpOverload, outside_of_modes, torch_pytree
from tpuport.internals.torchax_internals import (
    array_of,
    is_autocast,
    set_array,
)

_aten = torch.ops.aten
# What they raise for meta tensors, or give, depends on the device or on values.
_UNCHECKED = {
    _aten.copy_.default, _aten._to_copy.default, _aten.lift_fresh.default, _aten._local_scalar_dense.default,
    _aten.view.dtype, _aten.set_.source_Tensor, _aten.resize_.default, _aten.is_same_size.default,
    _aten.equal.default, _aten._grouped_mm.default, _aten._scaled_mm.default,
    _aten.addbmm_.default, _aten.as_strided.default, _aten.as_strided_.default,
}  # fmt: skip
# Of these only the errors: results have other dtypes or shapes on other devices.
_DEVICE_DEPENDENT = {
    _aten.native_batch_norm.default, _aten._native_batch_norm_legit.default,
    _aten._native_batch_norm_legit.no_stats, _aten._batch_norm_with_update.default,
    _aten.native_layer_norm.default, _aten._embedding_bag.default, _aten._embedding_bag_forward_only.default,
    _aten.pixel_unshuffle.default, _aten.multi_margin_loss.default, _aten.multilabel_margin_loss_forward.default,
}  # fmt: skip
# Of these, torch's kernels for meta tensors keep strides, where those for a CPU or a
# GPU give contiguous results.
_CONTIGUOUS = {
    _aten.masked_fill, _aten.tril, _aten.triu, _aten.native_group_norm, _aten.baddbmm, _aten.log_sigmoid_forward,
}  # fmt: skip
# Not asked about, as values or the device decide the rest; a result has the strides of
# the first argument.
_LIKE_FIRST = {
    torch.Tensor.to,
    _aten.to,
    _aten._to_copy,
    _aten.rand_like,
    _aten.randn_like,
    _aten.randint_like,
    _aten.bernoulli,
}
# torch has no operators for unsigned integers that jax has.
_WIDENED = {torch.uint32: torch.int64}
_REMEMBERED = 8192

Strides = tuple[int, ...]


class Form(NamedTuple):
    """What torch says of a tensor among the outputs.

    Attributes:
        strides: None if the tensor is contiguous.
    """

    shape: torch.Size
    dtype: torch.dtype
    strides: Strides | None


# None for an output of another kind than a tensor.
Forms = tuple[Form | None, ...]


class _Refusal(NamedTuple):
    """An exception of torch, as class and message."""

    kind: type[Exception]
    message: str


_known: "collections.OrderedDict[Hashable, Forms | _Refusal | None]" = (
    collections.OrderedDict()
)


def expected(function: Any, args: tuple, kwargs: dict[str, Any]) -> Forms | None:
    """The shapes, dtypes (as on the device) and strides of torch's outputs; None if
    torch cannot tell without values.

    Raises:
        Exception: torch's own, where it refuses the arguments.
    """
    # Views find their own strides, and are lenient where torch refuses: it may have
    # others than are known here.
    key_of = _key if _keeps_strides(function) else _key_without_strides
    key = (function, key_of(args), *map(key_of, kwargs.items()))
    try:
        answer = _known[key]
    except TypeError:  # an argument that cannot be hashed
        answer = _ask(function, args, kwargs)
    except KeyError:
        answer = _known[key] = _ask(function, args, kwargs)
        if len(_known) > _REMEMBERED:
            _known.popitem(last=False)
    if isinstance(answer, _Refusal):
        raise answer.kind(f"{answer.message} ({function})")
    return answer


def _key(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return *_key_without_strides(value), _strides(value)
    if isinstance(value, tuple | list):
        return type(value), *map(_key, value)
    # 1, True and 1.0 are equal.
    return _plain(value)


def _key_without_strides(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.Tensor, is_ported(value), value.shape, value.dtype
    if isinstance(value, tuple | list):
        return type(value), *map(_key_without_strides, value)
    return _plain(value)


def _plain(value: Any) -> Hashable:
    return (float,) if deferral.is_traced_float(value) else (type(value), value)


@functools.cache
def _keeps_strides(function: Any) -> bool:
    packet = getattr(function, "overloadpacket", function)
    return (
        packet not in VIEWS
        and packet not in VIEWS_IN_PLACE
        and packet not in _CONTIGUOUS
    )


def _strides(leaf: Any) -> Strides | None:
    """The strides of a tensor that is not contiguous."""
    if getattr(leaf, "_alias", None) is None:
        return None
    twin = aliasing.twin(leaf)
    return None if twin.is_contiguous() else twin.stride()


def _ask(function: Any, args: tuple, kwargs: dict[str, Any]) -> Forms | _Refusal | None:
    leaves, structure = torch_pytree.tree_flatten((args, kwargs))
    strides = [_strides(leaf) if _keeps_strides(function) else None for leaf in leaves]
    answer = _answer(function, leaves, strides, structure, _WIDENED)
    if isinstance(answer, _Refusal) and any(
        _dtype(leaf) in _WIDENED for leaf in leaves
    ):
        return _answer(function, leaves, strides, structure, {})
    return answer


def _dtype(leaf: Any) -> torch.dtype | None:
    return leaf.dtype if isinstance(leaf, torch.Tensor) else None


def _answer(
    function: Any,
    leaves: list[Any],
    strides: list[Strides | None],
    structure: Any,
    dtypes: dict[torch.dtype, torch.dtype],
) -> Forms | _Refusal | None:
    """Call the function with meta tensors."""
    with outside_of_modes(), torch.no_grad():
        meta = [
            _on_meta(leaf, of_leaf, dtypes)
            for leaf, of_leaf in zip(leaves, strides, strict=True)
        ]
        args, kwargs = torch_pytree.tree_unflatten(meta, structure)
        try:
            outputs = function(*args, **kwargs)
        except NotImplementedError:
            return None
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            # It says so where it needs values, or has no kernel.
            return (
                None
                if "meta" in str(error).lower()
                else _Refusal(type(error), str(error))
            )
        except Exception:  # noqa: BLE001 - a mistake in torch's Python kernels is not the user's
            return None
    return tuple(map(_form, torch_pytree.tree_leaves(outputs)))


def _on_meta(
    leaf: Any, strides: Strides | None, dtypes: dict[torch.dtype, torch.dtype]
) -> Any:
    if isinstance(leaf, torch.Tensor):
        dtype = dtypes.get(leaf.dtype, leaf.dtype)
        if strides is not None:
            return torch.empty_strided(leaf.shape, strides, dtype=dtype, device="meta")
        return torch.empty(leaf.shape, dtype=dtype, device="meta")
    if deferral.is_traced_float(leaf):
        return 0.5
    return torch.device("meta") if isinstance(leaf, torch.device) else leaf


def _form(output: Any) -> Form | None:
    if not isinstance(output, torch.Tensor):
        return None
    strides = None if output.is_contiguous() else output.stride()
    return Form(output.shape, device_dtype(output.dtype), strides)


def conformed(function: Any, outputs: Any, forms: Forms) -> Any:
    """Outputs of a lowering with torch's dtypes and strides.

    Raises:
        PortError: their number or shapes are not torch's.
    """
    if (
        isinstance(outputs, torch.Tensor)
        and len(forms) == 1
        and forms[0]
        and outputs.shape == forms[0].shape
    ):
        return _give_form(outputs, forms[0])
    leaves, structure = torch_pytree.tree_flatten(outputs)
    shapes = [leaf.shape if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
    if shapes != [form and form.shape for form in forms]:
        expected_shapes = [list(form.shape) if form else None for form in forms]
        actual = [shape if shape is None else list(shape) for shape in shapes]
        raise PortError(
            f"{function} gives other shapes on the device than in torch",
            where=f"{actual} instead of {expected_shapes}",
            fix="report it to tpuport, with the arguments; until then, write it with other operators",
        )
    formed = [
        _give_form(leaf, form) if form else leaf
        for leaf, form in zip(leaves, forms, strict=True)
    ]
    return torch_pytree.tree_unflatten(formed, structure)


def _give_form(tensor: Any, form: Form) -> Any:
    if is_ported(tensor) and tensor.dtype != form.dtype:
        tensor = _cast(tensor, form.dtype)
    # An argument that was written to has its layout already.
    if (
        form.strides is not None
        and is_ported(tensor)
        and getattr(tensor, "_alias", None) is None
    ):
        aliasing.lay_out(tensor, form.strides)
    return tensor


def _cast(tensor: Any, dtype: torch.dtype) -> Any:
    array_dtype = jax_dtype(dtype)
    if tensor.jax().dtype != array_dtype:
        # In place: the tensor may be an argument that the operator wrote to.
        set_array(tensor, array_of(tensor).astype(array_dtype))
    return integer_dtypes.declare(tensor, dtype)


def run_as_torch(run: Callable[[Call], Any], call: Call) -> Any:
    """What an operator or function gives, between torch's word on the arguments and on
    the results.

    Args:
        run: runs its lowering.
    """
    wide = wide_dtype(call.function, call.args, call.kwargs)
    outputs = _run_as_torch(run, call)
    if wide is not None and is_ported(outputs):
        narrowing.warn(wide)
    return outputs


def _run_as_torch(run: Callable[[Call], Any], call: Call) -> Any:
    function, args, kwargs = call.function, call.args, call.kwargs

    def run_with(function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        return run(Call(call.environment, function, args, kwargs))

    if not _is_checked(function, args, kwargs):
        outputs = integer_overflow.run_checked(run_with, function, args, kwargs)
        outputs = _with_integer_dtypes(function, args, kwargs, outputs)
        return _laid_out(function, args, kwargs, outputs)
    # Raises where there is no lowering, which comes first.
    find_operator(call.environment, function)
    forms = expected(function, args, kwargs)
    if forms and forms[0] and forms[0].dtype is torch.int64:
        outputs = integer_overflow.run_checked(run_with, function, args, kwargs)
    else:
        outputs = run(call)
    if forms is None or function in _DEVICE_DEPENDENT:
        return _with_integer_dtypes(function, args, kwargs, outputs)
    return conformed(function, _laid_out(function, args, kwargs, outputs), forms)


def _with_integer_dtypes(
    function: Any, args: tuple, kwargs: dict[str, Any], outputs: Any
) -> Any:
    """Results that `conformed` does not see, with their integers as torch has them."""
    leaves = torch_pytree.tree_leaves((args, kwargs))
    if not integer_dtypes.has_narrow(leaves):
        return outputs

    def find_dtypes() -> list[torch.dtype] | None:
        try:
            forms = expected(function, args, kwargs)
        except (RuntimeError, IndexError, ValueError, TypeError):
            # Torch's kernels do not take the device.
            forms = None
        if forms is None:
            return None
        return [form.dtype if form else torch.int64 for form in forms]

    return integer_dtypes.declare_results(function, leaves, outputs, find_dtypes)


def _laid_out(function: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> Any:
    """An output with the strides that torch gives it, where its kernels for meta
    tensors do not say them.
    """
    packet = getattr(function, "overloadpacket", function)
    if packet in _CONTIGUOUS:
        # What it is composed of may have kept strides.
        torch_pytree.tree_map_only(torch.Tensor, aliasing.leave, output)
    is_new = is_ported(output) and getattr(output, "_alias", None) is None
    keeps_format = kwargs.get("memory_format") in (None, torch.preserve_format)
    if (
        packet in _LIKE_FIRST
        and is_new
        and keeps_format
        and _strides(args[0]) is not None
    ):
        like = on_twins(torch.empty_like, aliasing.twin(args[0]))
        aliasing.lay_out(output, like.stride())
    return output


def wide_dtype(
    function: Any, args: tuple, kwargs: dict[str, Any]
) -> torch.dtype | None:
    """The dtype of 64 bits that a conversion or a new tensor asks for, which has 32
    instead; None for any other.

    Raises:
        PortError: a computation is asked to run in 64 bits.
    """
    name = getattr(function, "__name__", str(function)).split(".")[0]
    asked = _WIDE_CONVERSIONS.get(name)
    for leaf in (*args, *kwargs.values()):
        if leaf is torch.float64 or leaf is torch.complex128:
            asked = leaf
    if asked is None or jax.config.read("jax_enable_x64"):
        return None
    is_conversion = (
        name in _CONVERSIONS or name in _WIDE_CONVERSIONS or name.endswith("_like")
    )
    if is_conversion or not any(map(is_ported, args)):
        return asked
    # Not for what torch's own functions are composed of.
    if isinstance(function, OpOverload):
        return None
    raise MissingDtypeError(
        f"{name_of(function)} is to compute in {asked}, which the device does not have",
        where=described(*args),
        fix="dtype=torch.float32 computes in float32; jax_enable_x64 gives a CPU 64 bits, slowly a TPU too",
    )


def multiplies_matrices(function: Any) -> bool:
    """Whether torch takes tensors of one dtype only, which its kernels for meta tensors
    do not check.
    """
    return getattr(function, "overloadpacket", function) in _OF_ONE_DTYPE


def refuse_mixed_dtypes(call: Call) -> None:
    """Raise where torch takes tensors of one dtype only."""
    # Under autocast, torch casts them itself.
    if is_autocast(call.environment) or autocast.state() is not None:
        return
    leaves = torch_pytree.tree_leaves(call.args)
    tensors = [leaf for leaf in leaves if is_ported(leaf) and leaf.ndim]
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise RuntimeError(
            f"{name_of(call.function)} expects tensors of the same dtype, but got {described(*tensors)}"
        )


_OF_ONE_DTYPE = {
    _aten.mm, _aten.bmm, _aten.addmm, _aten.baddbmm, _aten.addbmm, _aten.mv, _aten.addmv, _aten.dot, _aten.vdot,
    _aten.convolution, _aten.linear, torch.nn.functional.linear, torch.matmul, torch.Tensor.matmul,
    torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm, torch.bmm, torch.Tensor.bmm,
}  # fmt: skip


# A tensor of 64 bits is one of 32 on the device wherever it comes from.
_WIDE_CONVERSIONS = {"double": torch.float64, "cdouble": torch.complex128}
_CONVERSIONS = {
    "to", "type", "new_tensor", "new_zeros", "new_ones", "new_full", "new_empty", "view", "_to_copy",
}  # fmt: skip


def _is_checked(function: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    return _may_be_asked(function) and (has_ported(args) or has_ported(kwargs.values()))


@functools.cache
def _may_be_asked(function: Any) -> bool:
    if not isinstance(function, OpOverload) or function.namespace != "aten":
        return False
    is_random = torch.Tag.nondeterministic_seeded in function.tags
    return function not in _UNCHECKED and not is_random


LOWERINGS = ()
# `dispatching` calls `run_as_torch`.
METHODS = ()
