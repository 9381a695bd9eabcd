"""`torch.autocast` on the device: operators compute in the dtypes that a GPU's would
compute in.

torch decides by operator, in kernels that it calls before all others while autocast is
on. It has such kernels for each kind of device but ours; these do the same for "jax",
by the same lists (`AT_FORALL_...` in torch's `autocast_mode.h`).
`torch.autocast("cuda")`, which torch switches off where there is no GPU, is autocast of
the device here. Tensors on the host take no part, unless the host stands in for a GPU.
"""

import contextlib
import functools
from collections.abc import Hashable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

from tpuport.compat import missing_cuda
from tpuport.compat.convert import device_dtype, is_ported
from tpuport.compat.declarations import Call
from tpuport.errors import MissingDtypeError
from tpuport.internals.torch_internals import (
    AUTOCAST,
    include_dispatch_key,
    operators_with_kernel,
    remove_kernels,
    schema_of,
    torch_pytree,
    without_dispatch_key,
)

DEVICE = "jax"
# Its name before torchax has been imported, which torch knows afterwards as well.
_DEVICE_TYPE = "privateuseone"
_KEY = "AutocastPrivateUse1"

# Operators that run in the dtype of the region.
_LOWER = frozenset({
    "_convolution", "_scaled_dot_product_flash_attention", "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm",
    "chain_matmul", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "convolution", "einsum", "gru_cell", "linalg_multi_dot", "linalg_vecdot", "linear", "lstm_cell",
    "matmul", "mm", "mv", "prelu", "rnn_relu_cell", "rnn_tanh_cell", "scaled_dot_product_attention",
})  # fmt: skip
# Operators that run in float32.
_FLOAT32 = frozenset({
    "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d", "acos", "asin", "binary_cross_entropy_with_logits", "cdist", "cosh",
    "cosine_embedding_loss", "cosine_similarity", "dist", "erfinv", "exp", "expm1", "frobenius_norm", "group_norm",
    "hinge_embedding_loss", "huber_loss", "interpolate", "kl_div", "l1_loss", "layer_norm", "linalg_matrix_sqrth",
    "log", "log10", "log1p", "log2", "logsumexp", "margin_ranking_loss", "mse_loss", "multi_margin_loss",
    "multilabel_margin_loss", "native_layer_norm", "nll_loss", "nll_loss2d", "norm", "nuclear_norm", "pdist",
    "poisson_nll_loss", "pow", "reciprocal", "renorm", "rms_norm", "rsqrt", "sinh", "smooth_l1_loss",
    "soft_margin_loss", "softplus", "tan", "triplet_margin_loss", "upsample_bicubic2d", "upsample_bilinear2d",
    "upsample_linear1d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_trilinear3d",
})  # fmt: skip
# Operators that run in float32 unless the call names another dtype.
_FLOAT32_BY_DEFAULT = frozenset({
    "cumprod", "cumsum", "linalg_matrix_norm", "linalg_vector_norm", "log_softmax", "prod", "softmax", "sum",
})  # fmt: skip
# Operators that run in the widest dtype among their operands.
_WIDEST = frozenset({
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler", "index_put", "scatter_add", "tensordot",
    "vdot",
})  # fmt: skip
_REFUSED = "binary_cross_entropy"
# Operators of a GPU's own libraries, which nobody calls by name.
_UNREACHABLE = frozenset({
    "_cudnn_rnn", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "cudnn_convolution", "cudnn_convolution_transpose",
})  # fmt: skip

_host_is_device: ContextVar[bool] = ContextVar("host is device", default=False)
_libraries: list[torch.library.Library] = []
_torch_initialize: Any = None
_torch_enter: Any = None
_torchax_dtypes: Any = None


def install() -> None:
    """Let `torch.autocast` reach the device. Does nothing the second time."""
    global _torch_initialize, _torch_enter, _torchax_dtypes
    if _libraries or not AUTOCAST.works():
        return
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, _KEY)
    casting = torch.library.Library("aten", "IMPL")
    _libraries.extend([others, casting])
    for name in _operators():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        casting.impl(
            name.removeprefix("aten::"), functools.partial(_run, operator, packet), _KEY
        )
    _torch_initialize, _torch_enter = torch.autocast.__init__, torch.autocast.__enter__
    torch.autocast.__init__ = _initialize  # type: ignore[method-assign]
    torch.autocast.__enter__ = _enter  # type: ignore[method-assign]
    device_module = getattr(torch, DEVICE)
    _torchax_dtypes = device_module.get_amp_supported_dtype
    device_module.get_amp_supported_dtype = _region_dtypes


@contextlib.contextmanager
def host_takes_part() -> Iterator[None]:
    """Cast tensors on the host like a GPU's, in regions for a GPU or for the host."""
    token = _host_is_device.set(True)
    try:
        yield
    finally:
        _host_is_device.reset(token)


def uninstall() -> None:
    """Leave autocast to torch again."""
    if _libraries:
        torch.autocast.__init__ = _torch_initialize  # type: ignore[method-assign]
        torch.autocast.__enter__ = _torch_enter  # type: ignore[method-assign]
        getattr(torch, DEVICE).get_amp_supported_dtype = _torchax_dtypes
        for library in _libraries:
            remove_kernels(library)
        _libraries.clear()


@functools.cache
def _operators() -> list[str]:
    """The operators, overloads included, for which torch has a kernel of its own under
    autocast on a GPU.
    """
    return [
        name
        for name in operators_with_kernel("AutocastCUDA")
        if name.removeprefix("aten::").split(".")[0] not in _UNREACHABLE
    ]


def _initialize(region: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
    """`torch.autocast(...)`: a region for a GPU that is not there is one for the
    device.
    """
    is_missing = device_type == "cuda" and not missing_cuda.has_gpu()
    if is_missing or (device_type == "cpu" and _host_is_device.get()):
        device_type = DEVICE
    _torch_initialize(region, device_type, *args, **kwargs)
    dtype = region.fast_dtype
    if region.device == DEVICE and region._enabled and device_dtype(dtype) != dtype:
        raise MissingDtypeError(
            f"torch.autocast is to compute in {dtype}, which the device does not have",
            fix=f"name another dtype, such as {device_dtype(dtype)}",
        )


def _region_dtypes() -> list[torch.dtype]:
    """What torch asks of a device other than a GPU, of which it takes a region of any
    dtype: one of float32 widens halves.
    """
    return [dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)]


def _enter(region: Any) -> Any:
    entered = _torch_enter(region)
    if region.device in (DEVICE, _DEVICE_TYPE):
        # torchax's tensors pass for ones on the meta device, which have no autocast.
        # This asks for the kernels in this thread whatever the tensors are; torch
        # itself leaves them out where autocast is off.
        include_dispatch_key(_KEY)
    return entered


def state() -> Hashable:
    """What a program depends on: the dtype of the region that surrounds this call; None
    outside of one.
    """
    if not torch.is_autocast_enabled(_DEVICE_TYPE):
        return None
    return torch.get_autocast_dtype(_DEVICE_TYPE)


def cast(call: Call) -> None:
    """Cast the arguments of a function of torch that runs on the device as a whole,
    none of its operators by itself.
    """
    if torch.is_autocast_enabled(_DEVICE_TYPE):
        name = getattr(call.function, "__name__", "")
        call.args, call.kwargs = _cast(name, call.args, call.kwargs)


def _run(operator: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """An operator inside of a region; what it consists of is left alone."""
    with without_dispatch_key(_KEY):
        if name in _FLOAT32_BY_DEFAULT and _is_eligible(args[0]):
            return operator(*_with_float32(operator, args, kwargs), **kwargs)
        args, kwargs = _cast(name, args, kwargs)
        return operator(*args, **kwargs)


def _with_float32(operator: Any, args: tuple, kwargs: dict[str, Any]) -> tuple:
    """The positional arguments, with which the operator computes in float32 unless the
    call names a dtype.
    """
    names = [
        argument.name
        for argument in schema_of(operator).arguments
        if not argument.kwarg_only
    ]
    if "dtype" not in names:
        if kwargs.get("dtype") is None:
            kwargs["dtype"] = torch.float32
        return args
    position = names.index("dtype")
    if len(args) <= position:
        return (*args, torch.float32)
    return (*args[:position], args[position] or torch.float32, *args[position + 1 :])


def _cast(
    name: str, args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    eligible = [
        leaf for leaf in torch_pytree.tree_leaves((args, kwargs)) if _is_eligible(leaf)
    ]
    if not eligible:
        return args, kwargs
    if name in _LOWER:
        return _to(torch.get_autocast_dtype(_DEVICE_TYPE), args, kwargs)
    if name in _FLOAT32:
        return _to(torch.float32, args, kwargs)
    if name in _WIDEST:
        return _to(_widest(leaf.dtype for leaf in eligible), args, kwargs)
    if name == _REFUSED:
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast; use "
            "torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which are safe"
        )
    return args, kwargs


def _widest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """The dtype of the region or float32: what torch finds going through the operands
    in order, where it refuses another half before a float32.
    """
    narrow = widest = torch.get_autocast_dtype(_DEVICE_TYPE)
    for dtype in dtypes:
        if torch.float32 in (widest, dtype):
            widest = torch.float32
        elif dtype != narrow:
            raise RuntimeError(
                f"Unexpected floating ScalarType in autocast: {dtype}, and the region is of {narrow}"
            )
    return widest


def _is_eligible(value: Any) -> bool:
    if not is_ported(value) and not (
        _host_is_device.get() and isinstance(value, torch.Tensor)
    ):
        return False
    return value.is_floating_point() and value.dtype != torch.float64


def _to(
    dtype: torch.dtype, args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:

    def cast(leaf: Any) -> Any:
        return leaf.to(dtype) if _is_eligible(leaf) else leaf

    return torch_pytree.tree_map(cast, (args, kwargs))
