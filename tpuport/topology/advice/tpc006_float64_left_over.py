"""TPC006: float64, which a TPU does not have."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch

from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_bytes, format_count
from tpuport.topology.advice.evidence import Evidence

_WIDE: Final = (torch.float64, torch.complex128)
# Names that a finding lists.
_MOST_NAMED: Final = 4


def check(evidence: Evidence) -> Iterator[Hit]:
    """Inputs of the call, then the model's own."""
    inputs = {name: value for name, value in evidence.named_inputs() if _is_wide(value)}
    if inputs:
        yield Hit(
            f"{format_count(len(inputs), 'input')} of 64 bits become 32 at each call: {_list_names(inputs)}",
            "give float32 or bfloat16: tensor.float(), or dtype= where it is made",
            4 * sum(int(np.prod(tuple(value.shape), dtype=np.int64)) for value in inputs.values()),
        )
    named = [*evidence.model.named_parameters(), *evidence.model.named_buffers()]
    weights = {name: value for name, value in named if value.dtype in _WIDE}
    if weights:
        nbytes = 4 * sum(value.numel() for value in weights.values())
        yield Hit(
            f"{format_count(len(weights), 'weight')} of 64 bits in the model, {format_bytes(nbytes)} in the 32 bits of "
            f"the device: {_list_names(weights)}",
            "dtype='bfloat16' for parameters; a buffer with dtype=torch.float32 where it is made",
            nbytes,
        )


def _list_names(values: dict[str, Any]) -> str:
    return ", ".join(list(values)[:_MOST_NAMED])


def _is_wide(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype in _WIDE
    try:
        return np.dtype(dtype) in (np.float64, np.complex128)
    except TypeError:  # jax's random keys have a dtype that is not numpy's
        return False


RULE = AdviceRule(
    id="TPC006",
    name="float64-left-over",
    summary="inputs, parameters or buffers of 64 bits",
    why="""A TPU has no float64: jax makes 32 bits of it. What the model computed in 64 bits on a GPU is less exact
on a TPU, and an input of 64 bits is converted on the host at each call. It is most often a NumPy array, or a table of
frequencies that asked for float64 without needing it.""",
    measured="""The dtypes of the inputs as they were given, and of the model's parameters and buffers. Integers of
64 bits are all right: indices fit into 32.""",
    before="""class Scale(nn.Module):
    def forward(self, x, sigmas):
        return x * sigmas.to(x.dtype)


x = torch.empty(8, 50, dtype=torch.bfloat16, device="meta")
sigmas = torch.from_numpy(np.linspace(0, 1, 50))
compile_for(Scale(), {"x": x, "sigmas": sigmas}, topology="v6e:2x2", tp=4)""",
    after="""class Scale(nn.Module):
    def forward(self, x, sigmas):
        return x * sigmas.to(x.dtype)


x = torch.empty(8, 50, dtype=torch.bfloat16, device="meta")
sigmas = torch.linspace(0, 1, 50)
compile_for(Scale(), {"x": x, "sigmas": sigmas}, topology="v6e:2x2", tp=4)""",
    check=check,
)
