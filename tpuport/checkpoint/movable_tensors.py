"""Which tensors of a model can be moved to the device: asked before the first is."""

import torch

from tpuport import compat
from tpuport.base.mappings import without
from tpuport.base.plurals import count_noun
from tpuport.errors import PortError
from tpuport.quantization import part_names

_WIDE_INTEGERS = (torch.int64, torch.uint64)


def named_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and buffer, tied ones under each of their names, but no part of a
    quantised weight.
    """
    tensors: dict[str, torch.Tensor] = dict(
        model.named_parameters(remove_duplicate=False)
    )
    tensors.update(model.named_buffers(remove_duplicate=False))
    return without(tensors, part_names(model))


def check_movable(model: torch.nn.Module, dtypes: dict[str, torch.dtype]) -> None:
    """PortError for tensors without values, and for tensors that cannot become an array
    of their dtype.
    """
    tensors = named_tensors(model)
    host_tensors = {
        name: tensor for name, tensor in tensors.items() if not compat.is_ported(tensor)
    }
    empty = [name for name, tensor in host_tensors.items() if tensor.is_meta]
    if empty:
        raise PortError(
            f"the model has {count_noun(len(empty), 'tensor')} without values, on the meta device",
            where=", ".join(empty[:20]),
            fix="load the checkpoint with tpuport.load, or with from_pretrained",
        )
    # Code may never read them; what does is told so.
    staying = {
        name
        for name, buffer in model.named_buffers()
        if not compat.has_array_form(buffer)
    }
    # Each error gets the name of its tensor, which the conversion does not know.
    for name, dtype in without(dtypes, staying).items():
        try:
            compat.jax_dtype(dtype)
            if name in host_tensors:
                _check_convertible(host_tensors[name], dtype)
        except PortError as error:
            raise PortError(error.what, where=name, fix=error.fix) from None


def _check_convertible(tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """PortError for a tensor that cannot become an array."""
    if tensor.dtype in _WIDE_INTEGERS:
        # Converted whole: such tensors are small, and may hold numbers that do not fit
        # 32 bits.
        compat.to_jax(tensor)
        return
    if not compat.has_array_form(tensor):
        raise PortError(
            f"a {kind_of(tensor)} tensor cannot be moved",
            fix="make it dense first: to_dense(), or dequantize()",
        )
    try:
        # An empty slice is enough to find out, and costs nothing.
        compat.to_jax(tensor.detach()[(slice(0, 0),) * tensor.ndim].to(dtype))
    except (
        RuntimeError,
        TypeError,
        NotImplementedError,
        AttributeError,
        ValueError,
    ) as error:
        raise PortError(
            f"a {type(tensor).__name__} cannot be moved: {error}"
        ) from error


def kind_of(tensor: torch.Tensor) -> str:
    """What a tensor without an array form is: "sparse_coo"."""
    if tensor.is_quantized:
        return "quantized"
    return str(tensor.layout).removeprefix("torch.")
