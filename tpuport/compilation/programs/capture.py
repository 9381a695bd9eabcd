"""A function's code, run once over tracers: its program, as a jaxpr.

What a program needs is known when the code has run: the keys of its draws, the arrays
that it overwrites. So the keys are inputs from the start, more of them than most code
draws, and what follows from the program is decided by passes over it
(`programs.passes`), and not by running the code again.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr

from tpuport.compat import index_checks, randomness
from tpuport.compilation.programs.traced_once import TracedOnce
from tpuport.errors import PortError
from tpuport.internals.jax_internals import KEPT_TRACES

# The first has keys enough unless the code draws very often, or from a generator that
# is no argument.
_MOST_TRACES = 4


class Captured(NamedTuple):
    """The program of a function.

    Attributes:
        program: its inputs are the arrays in the arguments of the function, then keys
            [rows, 2] of each source of random numbers, used or not: jax drops those
            that are not.
        function: takes these arguments, and the keys one by one, and gives the results
            of the program as a list. jax has traced it unless a pass has changed the
            program.
        results: what the function returned, with a jax.ShapeDtypeStruct for each array.
        draws: how many keys a run takes of each source.
    """

    program: ClosedJaxpr
    function: TracedOnce
    results: Any
    draws: randomness.Draws

    @classmethod
    def of_program(cls, name: str, program: ClosedJaxpr) -> "Captured":
        """A program by itself, which draws nothing; `name` is what profilers call
        it.
        """
        signature = inspect.signature(lambda *arrays: None)
        function = TracedOnce(name, tuple, signature).evaluating(program)
        results = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in program.out_avals
        ]
        return cls(program, function, results, ())

    @property
    def key_avals(self) -> Sequence[Any]:
        """The forms of the keys."""
        avals = self.program.in_avals
        return avals[len(avals) - len(self.draws) :]

    def changed(self, program: ClosedJaxpr) -> "Captured":
        """With another program, which has the same inputs and results."""
        if program is self.program:
            return self
        return self._replace(
            program=program, function=self.function.evaluating(program)
        )

    def reordered(self, order: Sequence[int]) -> "Captured":
        """With the inputs before the keys in this order of their numbers."""
        jaxpr = self.program.jaxpr
        inputs = [jaxpr.invars[number] for number in order]
        jaxpr = jaxpr.replace(invars=[*inputs, *jaxpr.invars[len(order) :]])
        return self.changed(ClosedJaxpr(jaxpr, self.program.consts))


def capture(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    name: str,
    *,
    checks_indices: bool,
    has_keys: bool = True,
) -> Captured:
    """Run a function over tracers.

    Args:
        function: takes trees of arrays.
        arguments: these, or trees of jax.ShapeDtypeStructs.
        name: what errors call it.
        checks_indices: whether the program checks its indices.
        has_keys: whether there are keys from the start. Without them, code that draws
            runs twice, and the program of any other has no inputs beside the arguments.

    Raises:
        PortError: the code draws another number of random numbers each time.
    """
    no_keys = nullcontext(randomness.ProgramKeys((), ()))
    with randomness.first_keys() if has_keys else no_keys as keys:
        try:
            return _trace(
                function, arguments, keys, name, checks_indices, has_all_keys=False
            )
        except randomness.MoreKeysNeeded as needed:
            draws = needed.draws
    for _ in range(_MOST_TRACES):
        try:
            with randomness.restored(draws):
                keys = randomness.example_keys(draws)
                return _trace(
                    function, arguments, keys, name, checks_indices, has_all_keys=True
                )
        except randomness.MoreKeysNeeded as needed:
            draws = needed.draws
    raise PortError(
        "this code draws another number of random numbers each time it is traced",
        where=name,
        fix="let the number of draws not depend on random choices in Python",
    )


def _trace(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    keys: randomness.ProgramKeys,
    name: str,
    checks_indices: bool,
    *,
    has_all_keys: bool,
) -> Captured:
    draws: randomness.Draws = ()
    structure: Any = None
    count, sources = len(arguments), keys.sources

    def run(*given: Any) -> list[Any]:
        nonlocal draws, structure
        keys = randomness.ProgramKeys(sources, given[count:])
        with (
            randomness.program_stream(keys, has_all_keys=has_all_keys) as stream,
            index_checks.checking(checks_indices),
        ):
            results = function(*given[:count])
            draws = stream.draws()
        arrays, structure = jax.tree.flatten(results)
        return arrays

    once = TracedOnce(name, run, inspect.signature(function))
    traced = jax.jit(once).trace(*arguments, *keys.arrays)
    once.program = traced.jaxpr
    if not KEPT_TRACES.works():
        once = once.evaluating(traced.jaxpr)
    counts = dict(draws)
    return Captured(
        traced.jaxpr,
        once,
        structure.unflatten(traced.out_info),
        tuple((source, counts.get(source, 0)) for source in sources),
    )
