"""A function's code, run once over tracers: its program, as a jaxpr.

What a program needs is known when the code has run: the keys of its draws, the arrays
that it overwrites. So the keys are inputs from the start, more of them than most code
draws, and what follows from the program is decided by passes over it
(`programs.passes`), and not by running the code again.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr

from tpuport.compat import index_checks, randomness
from tpuport.errors import PortError

# The first has keys enough unless the code draws very often, or from a generator that
# is no argument.
_MOST_TRACES = 4


class Captured(NamedTuple):
    """The program of a function.

    Attributes:
        program: its inputs are the arrays that the function was given, then keys
            [rows, 2] of sources of random numbers.
        results: what the function returned, with a jax.ShapeDtypeStruct for each array.
        draws: how many keys a run takes of each source.
        key_inputs: which of these are inputs of the program.
    """

    program: ClosedJaxpr
    results: Any
    draws: randomness.Draws
    key_inputs: tuple[int, ...]


def capture(
    function: Callable[[list[Any]], Any],
    arrays: Sequence[Any],
    name: str,
    *,
    checks_indices: bool,
) -> Captured:
    """Run a function over tracers.

    Args:
        function: takes a list of arrays.
        arrays: these, or jax.ShapeDtypeStructs.
        name: what errors call it.
        checks_indices: whether the program checks its indices.

    Raises:
        PortError: the code draws another number of random numbers each time.
    """
    with randomness.first_keys() as keys:
        try:
            return _trace(function, arrays, keys, checks_indices, has_all_keys=False)
        except randomness.MoreKeysNeeded as needed:
            draws = needed.draws
    for _ in range(_MOST_TRACES):
        try:
            with randomness.restored(draws):
                keys = randomness.example_keys(draws)
                return _trace(function, arrays, keys, checks_indices, has_all_keys=True)
        except randomness.MoreKeysNeeded as needed:
            draws = needed.draws
    raise PortError(
        "this code draws another number of random numbers each time it is traced",
        where=name,
        fix="let the number of draws not depend on random choices in Python",
    )


def _trace(
    function: Callable[[list[Any]], Any],
    arrays: Sequence[Any],
    keys: randomness.ProgramKeys,
    checks_indices: bool,
    *,
    has_all_keys: bool,
) -> Captured:
    draws: randomness.Draws = ()

    def counted(arrays: list[Any], keys: randomness.ProgramKeys) -> Any:
        nonlocal draws
        with (
            randomness.program_stream(keys, has_all_keys=has_all_keys) as stream,
            index_checks.checking(checks_indices),
        ):
            results = function(arrays)
            draws = stream.draws()
        return results

    traced = jax.jit(counted).trace(list(arrays), keys)
    counts = dict(draws)
    return Captured(
        traced.jaxpr,
        traced.out_info,
        tuple((source, counts.get(source, 0)) for source in keys.sources),
        tuple(range(len(keys.sources))),
    )
