"""transformers' sinusoidal position tables, which grow when a sequence is longer: in a
loop they must not ask.

Their modules (M2M100's and those that copy it) compare a length with that of the table,
unless torch.compile traces and the length is a tensor; then they leave the table as it
is. Here the length is a tensor, and `generate` has compared the longest sequence with
the model's positions before.
"""

import contextlib
import sys
from collections.abc import Iterator
from unittest import mock

import torch

_GUARD = "is_torchdynamo_compiling"


@contextlib.contextmanager
def fixed_tables(model: torch.nn.Module) -> Iterator[None]:
    """Traced. Let the model's position tables stay as they are, as under
    torch.compile.
    """
    with contextlib.ExitStack() as stack:
        for name in {
            type(module).__module__
            for module in model.modules()
            if hasattr(module, "make_weights")
        }:
            namespace = sys.modules[name]
            if hasattr(namespace, _GUARD):
                stack.enter_context(mock.patch.object(namespace, _GUARD, _is_compiling))
        yield


def _is_compiling() -> bool:
    return True
