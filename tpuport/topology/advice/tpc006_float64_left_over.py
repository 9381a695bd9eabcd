"""TPC006: float64, which a TPU has not."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.inputs import leaves
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.wording import several, size

_WIDE: Final = (torch.float64, torch.complex128)


def check(evidence: Evidence) -> Iterator[Hit]:
    """Inputs of the call, then the model's own."""
    inputs = [
        (name, value) for name, value in leaves(evidence.inputs) if _is_wide(getattr(value, "dtype", None))
    ]
    if inputs:
        yield Hit(
            f"{several(len(inputs), 'input')} of 64 bits become 32 at each call: "
            + ", ".join(name for name, _ in inputs[:4]),
            "give float32 or bfloat16: tensor.float(), or dtype= where it is made",
            sum(_elements(value) * 4 for _, value in inputs),
        )
    named = [*evidence.model.named_parameters(), *evidence.model.named_buffers()]
    owned = [(name, value) for name, value in named if _is_wide(value.dtype)]
    if owned:
        total = sum(value.numel() * 4 for _, value in owned)
        yield Hit(
            f"{several(len(owned), 'weight')} of 64 bits in the model, {size(total)} in the 32 bits of the device: "
            + ", ".join(name for name, _ in owned[:4]),
            "dtype='bfloat16' for parameters; a buffer with dtype=torch.float32 where it is made",
            total,
        )


def _is_wide(dtype: Any) -> bool:
    if isinstance(dtype, torch.dtype):
        return dtype in _WIDE
    try:
        return np.dtype(dtype) in (np.float64, np.complex128) if dtype is not None else False
    except TypeError:
        return False


def _elements(value: Any) -> int:
    return int(np.prod(tuple(value.shape), dtype=np.int64))


RULE = Rule(
    id="TPC006",
    name="float64-left-over",
    summary="inputs, parameters or buffers of 64 bits",
    why="""A TPU has no float64: jax makes 32 bits of it. What the model computed in 64 bits on a GPU is less exact
here, and an input of 64 bits is converted on the host at each call. It is most often a NumPy array, or a table of
frequencies that asked for float64 without needing it.""",
    measured="""The dtypes of the inputs as they were given, and of the model's parameters and buffers. Integers of
64 bits are all right: indices fit into 32.""",
    before="""sigma = torch.from_numpy(np.linspace(0, 1, 50))""",
    after="""sigma = torch.linspace(0, 1, 50)""",
    check=check,
)
