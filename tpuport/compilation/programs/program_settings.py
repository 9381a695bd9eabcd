"""The settings of torch that a program is made for, and those of the compiler."""

from collections.abc import Hashable
from typing import Any

import jax
import torch

from tpuport.compat import autocast
from tpuport.hardware import compiler_options, generation_of_kind, local_generation
from tpuport.internals.jax_internals import is_any_trace_under_way


def current_surroundings() -> Hashable:
    """The settings of torch that a program is made for."""
    return autocast.state(), torch.get_default_dtype()


def options_of(arguments: Any, *, updates_cache: bool = False) -> dict[str, str]:
    """The compiler's options for a program that runs with these arguments.

    Args:
        updates_cache: as in `compiler_options`.
    """
    # Asked for at each call: before the first, the answer would start jax before
    # several processes join.
    if is_any_trace_under_way():
        # A part of another program, for which jax accepts none.
        return {}
    array = _first_array(arguments)
    if array is None:
        generation = local_generation()
    else:
        # Not the default device's: on a host with TPUs, arrays may be on the CPU.
        device = next(iter(array.sharding.device_set))
        generation = generation_of_kind(device.device_kind)
    if generation is None:
        return {}
    return compiler_options(generation, updates_cache=updates_cache)


def _first_array(tree: Any) -> jax.Array | None:
    """The first array in nested tuples, lists and dicts, without looking at the
    hundreds of others.
    """
    if isinstance(tree, jax.Array):
        return tree
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return None
    arrays = map(_first_array, tree)
    return next((array for array in arrays if array is not None), None)
