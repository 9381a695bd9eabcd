"""TPC006: float64, which a TPU does not have."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch

from tpuport.base.plurals import count_noun
from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_bytes
from tpuport.topology.advice.evidence import Evidence

_WIDE: Final = (torch.float64, torch.complex128)
# Names that a finding lists.
_MOST_NAMED: Final = 4


def check(evidence: Evidence) -> Iterator[Hit]:
    """Inputs of the call, then the model's own."""
    inputs = {name: value for name, value in evidence.named_inputs() if _is_wide(value)}
    if inputs:
        yield Hit(
            f"{count_noun(len(inputs), '64-bit input')} converted to 32 bits in each call: {_list_names(inputs)}",
            "pass float32 or bfloat16: tensor.float(), or dtype= where the tensor is created",
            4
            * sum(
                int(np.prod(tuple(value.shape), dtype=np.int64))
                for value in inputs.values()
            ),
        )
    # The model's own dtypes: the weights of the program have 32 bits already.
    named = [*evidence.model.named_parameters(), *evidence.model.named_buffers()]
    weights = {name: value for name, value in named if value.dtype in _WIDE}
    if weights:
        nbytes = 4 * sum(value.numel() for value in weights.values())
        yield Hit(
            f"{count_noun(len(weights), '64-bit weight')} in the model, {format_bytes(nbytes)} in the device's 32 "
            f"bits: {_list_names(weights)}",
            "dtype='bfloat16' for parameters; dtype=torch.float32 where a buffer is created",
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
    summary="64-bit inputs, parameters or buffers",
    why="""TPUs have no float64, so jax narrows it to 32 bits. What the model computed in 64 bits on a GPU is less
precise on a TPU, and a 64-bit input is converted on the host in each call. The usual source is a NumPy array, or a
table of frequencies that uses float64 without needing it.""",
    measured="""The dtypes of the inputs as passed, and of the model's parameters and buffers. 64-bit integers are
fine: indices fit into 32 bits.""",
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
