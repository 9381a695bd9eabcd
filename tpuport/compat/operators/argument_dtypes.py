"""Dtypes of arguments that torch's kernels on a CPU refuse: asked before an operator
runs on the device.

jax promotes mixed dtypes, so that a model of 16 bits would go on in float32 without a
word. Torch's kernels for meta tensors, which `expectations` asks, do not check these
operators.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tpuport.compat import autocast
from tpuport.compat.convert import is_ported
from tpuport.compat.declarations import Call
from tpuport.errors import PortError
from tpuport.internals.torch_internals import torch_pytree
from tpuport.internals.torchax_internals import is_autocast

_aten = torch.ops.aten
_functional = torch.nn.functional
_HALF = (torch.bfloat16, torch.float16)


def has_rule(function: Any) -> bool:
    """Whether torch on a CPU may refuse the dtypes of an operator's arguments."""
    return getattr(function, "overloadpacket", function) in _RULES


def check(call: Call) -> None:
    """Raise torch's error, if torch on a CPU refuses the dtypes of an operator's
    arguments.
    """
    # Under autocast, torch casts arguments itself.
    if is_autocast(call.environment) or autocast.state() is not None:
        return
    function, args, kwargs = call.function, call.args, call.kwargs
    if any(map(is_ported, torch_pytree.tree_leaves((args, kwargs)))):
        _RULES[getattr(function, "overloadpacket", function)](function, args, kwargs)


def _refuse(function: Any, requirement: str, tensors: Sequence[torch.Tensor]) -> None:
    raise RuntimeError(
        f"{_describe(function, requirement, tensors)}; cast them to one dtype, x.to(y.dtype)"
    )


def _describe(function: Any, requirement: str, tensors: Sequence[torch.Tensor]) -> str:
    dtypes = ", ".join(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
    return f"{_short_name(function)}() expects {requirement}, but got {dtypes}"


def _short_name(function: Any) -> str:
    name = getattr(function, "overloadpacket", function).__name__
    return name.removeprefix("_").removeprefix("native_")


def _of_one_dtype(function: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    tensors = _tensors((args, kwargs))
    if len({tensor.dtype for tensor in tensors}) > 1:
        _refuse(function, "tensors of the same dtype", tensors)


def _einsum(function: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """One dtype where elements are multiplied and summed; a product alone promotes."""
    if not isinstance(args[0], str):  # the operands with lists of dimensions
        _of_one_dtype(function, args, kwargs)
        return
    inputs, _, output = args[0].replace(" ", "").replace("...", "").partition("->")
    labels = collections.Counter(
        label for part in inputs.split(",") for label in set(part)
    )
    if "->" not in args[0]:
        output = "".join(label for label, count in labels.items() if count == 1)
    if any(count > 1 and label not in output for label, count in labels.items()):
        _of_one_dtype(function, args, kwargs)


def _refuse_attention(
    function: Any, requirement: str, tensors: Sequence[torch.Tensor]
) -> None:
    # Of the kind that tpuport's own attention raises, which answers in compiled code.
    raise PortError(
        _describe(function, requirement, tensors),
        where=", ".join(str(list(tensor.shape)) for tensor in tensors),
        fix="cast them to one dtype, x.to(y.dtype)",
    )


def _attention(function: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    names = ("query", "key", "value", "attn_mask")
    arguments = dict(zip(names, args, strict=False)) | kwargs
    tensors = [arguments[name] for name in names[:3] if name in arguments]
    first = tensors[0].dtype
    if not first.is_floating_point or any(tensor.dtype != first for tensor in tensors):
        _refuse_attention(
            function, "query, key and value of the same floating dtype", tensors
        )
    mask = arguments.get("attn_mask")
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, first):
        _refuse_attention(
            function,
            "a mask of bools, of float32 or of the query's dtype",
            [tensors[0], mask],
        )


def _normalization(function: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Parameters and statistics of one dtype: that of the input, or float32 beside an
    input of 16 bits.
    """
    x, *parameters = _tensors((args, kwargs))
    dtypes = {parameter.dtype for parameter in parameters}
    is_mixed = x.dtype in _HALF and dtypes == {torch.float32}
    if not (is_mixed or dtypes <= {x.dtype}):
        _refuse(
            function,
            "parameters that all have the input's dtype, or float32",
            [x, *parameters],
        )


def _floating(function: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    x = args[0]
    # With a dtype, or for a result in float32, torch converts first.
    if not x.dtype.is_floating_point and not x.dtype.is_complex:
        raise NotImplementedError(
            f'"{_short_name(function)}" not implemented for {x.dtype}; use .float()'
        )


def _any_floating(function: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    tensors = _tensors((args, kwargs))
    if not any(
        tensor.dtype.is_floating_point or tensor.dtype.is_complex for tensor in tensors
    ):
        raise NotImplementedError(
            f'"{_short_name(function)}" not implemented for integers; use .float()'
        )


def _numbers(function: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    tensors = _tensors((args, kwargs))
    if any(tensor.dtype == torch.bool for tensor in tensors):
        raise NotImplementedError(
            f'"{_short_name(function)}" not implemented for bools; use .float()'
        )


def _class_numbers(function: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """The targets of a loss."""
    _wide_integers(function, args[1], (torch.int64, torch.uint8))


def _one_hot(function: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    _wide_integers(function, args[0], (torch.int64,))


def _wide_integers(
    function: Any, tensor: torch.Tensor, dtypes: Sequence[torch.dtype]
) -> None:
    if tensor.dtype not in dtypes:
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise RuntimeError(
            f"{_describe(function, f'dtype {names}', [tensor])}; use .long()"
        )


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [
        leaf
        for leaf in torch_pytree.tree_leaves(tree)
        if isinstance(leaf, torch.Tensor)
    ]


_Rule = Callable[[Any, tuple, dict[str, Any]], None]
_RULES: dict[Any, _Rule] = {
    _functional.scaled_dot_product_attention: _attention,
    _aten.scaled_dot_product_attention: _attention,
    **dict.fromkeys(
        (
            _aten.native_layer_norm, _aten.native_group_norm, _aten.native_batch_norm,
            _aten._native_batch_norm_legit, _aten._native_batch_norm_legit_no_training,
            _aten._batch_norm_with_update,
        ),
        _normalization,
    ),
    **dict.fromkeys(
        (
            torch.cdist, _aten._cdist_forward, _aten.grid_sampler_2d, _aten.grid_sampler_3d, _aten.polar,
            _aten.linalg_cross, torch.linalg.solve, torch.linalg.solve_ex, _aten._linalg_solve_ex, torch.allclose,
            torch.Tensor.allclose, _aten.allclose, _aten.binary_cross_entropy, _aten.huber_loss, _aten.heaviside,
            torch.isclose,
        ),
        _of_one_dtype,
    ),
    torch.einsum: _einsum,
    torch.nn.functional.one_hot: _one_hot,
    _aten.nll_loss_forward: _class_numbers,
    _aten.nll_loss2d_forward: _class_numbers,
    **dict.fromkeys((_aten._softmax, _aten._log_softmax), _floating),
    **dict.fromkeys((_aten.lerp, _aten.hypot, _aten.logaddexp, _aten.nextafter), _any_floating),
    **dict.fromkeys((_aten.mm, _aten.bmm, _aten.addmm, _aten.baddbmm, _aten.mv, _aten.dot), _numbers),
}  # fmt: skip
LOWERINGS = ()
# `dispatching` calls `check`.
METHODS = ()
