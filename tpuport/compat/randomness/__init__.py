"""Random numbers: from torch's generators, on the device, the same eagerly and in a
program.

A draw passes these files. `samplers` has torch's operators, each a form
(`operator_forms`) of what `distributions` makes of a key; `rrelu` draws too, and
`distribution_classes` does what `torch.distributions` needs. `placement` says which of
them draw on the device. `streams` gives each draw its key, from a generator or from the
arguments of the program that is being traced (`program_keys`). `generator_states` is
what code may do with the generators themselves.
"""

from tpuport.compat.randomness.program_keys import ProgramKeys
from tpuport.compat.randomness.streams import (
    Draws,
    MoreKeysNeeded,
    any_stream,
    call_generator,
    call_generators,
    example_keys,
    first_keys,
    is_traced,
    iteration,
    next_key,
    program_stream,
    restored,
    take_keys,
)

__all__ = [
    "Draws",
    "MoreKeysNeeded",
    "ProgramKeys",
    "any_stream",
    "call_generator",
    "call_generators",
    "example_keys",
    "first_keys",
    "is_traced",
    "iteration",
    "next_key",
    "program_stream",
    "restored",
    "take_keys",
]
