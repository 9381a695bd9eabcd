"""Checks of tensors in a model's code, such as that there are as many image tokens as
image features.

torch looks at the values and raises. In a trace they are unknown, so the program
returns whether the checks hold.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import jax
import jax.numpy as jnp
import torch
from jax.core import Tracer
from jax.extend.core import get_opaque_trace_state

from tpuport import compat

# By which transformers' `torch_compilable_check` looks at a tensor.
_CHECK: Final = "_check_tensor_all_with"


@contextlib.contextmanager
def collect_checks() -> Iterator[list[jax.Array]]:
    """Traced. A list to which the checks of this trace are added: bool scalars, True
    where they hold.

    The caller has the lock of traces, because this replaces a function of torch.
    """
    original = getattr(torch, _CHECK)
    trace = get_opaque_trace_state()
    checks: list[jax.Array] = []

    def collect(
        error_type: type[Exception], condition: Any, message: Any = None
    ) -> None:
        value = compat.as_jax(condition) if compat.is_ported(condition) else None
        if not isinstance(value, Tracer):
            original(error_type, condition, message)
        elif get_opaque_trace_state() == trace:
            checks.append(jnp.all(value))

    setattr(torch, _CHECK, collect)
    try:
        with (
            compat.lazy_masked_selections(),
            compat.checks_trusted(
                collect=lambda text, holds: collect(ValueError, holds, text)
            ),
        ):
            yield checks
    finally:
        setattr(torch, _CHECK, original)
