"""A captured program, compiled: it takes arrays one by one, and gives a list of them.

Its arguments have no structure that jax would take apart and compare in each call: for
a model of 80 layers that takes 2 milliseconds.
"""

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import jaxpr_as_fun

from tpuport.compat import index_checks, randomness
from tpuport.compilation.programs.capture import Captured
from tpuport.compilation.programs.interrupted_caches import (
    clear_if_spoiled,
    cleared_if_spoiled,
)
from tpuport.compilation.programs.persistent_cache import (
    CACHE_ERRORS,
    explain_cache,
)
from tpuport.compilation.programs.program_settings import options_of
from tpuport.hardware import process_watch


class Retraced(Exception):
    """jax has no program for these arrays: their shapes or dtypes are others, or a
    setting of jax is. The code has to be captured again.
    """


class FlatProgram:
    """A program whose arguments and results are arrays.

    Arguments may be trees of arrays, too, whose leaves are its inputs, in order.

    Args:
        name: what errors call it.
        captured: the program.
        donated: numbers of the arguments that are donated, in the order of the results
            that take their memory.
        checks_indices: whether it checks its indices.
        updates_cache: as in `compiler_options`.

    Attributes:
        captured: as above.
        donated: as above.
        count: of the inputs beside keys of draws.
        draws: how many keys a run takes of each source that it draws from.
    """

    def __init__(
        self,
        name: str,
        captured: Captured,
        donated: Sequence[int],
        *,
        checks_indices: bool,
        updates_cache: bool = False,
    ) -> None:
        self.name = name
        self.captured = captured
        self.donated = tuple(donated)
        self._checks_indices = checks_indices
        self._updates_cache = updates_cache
        avals = captured.program.in_avals
        self.count = len(avals) - len(captured.key_inputs)
        self._key_avals = avals[self.count :]
        # jax gives donated arrays to results of their form in order.
        self._order: tuple[int, ...] | None = None
        if self.donated != tuple(sorted(self.donated)):
            kept = sorted(set(range(self.count)).difference(self.donated))
            self._order = (*kept, *self.donated)
        # In the order of the keys: most programs draw nothing.
        draws = captured.draws
        self.draws = tuple(draw for draw in draws if draw[1])
        self._key_places = [
            self.draws.index(draws[number]) for number in captured.key_inputs
        ]
        self._jitted_by_options: dict[tuple[tuple[str, str], ...], Any] = {}

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Run the program.

        Args:
            arrays: of its inputs, in the order in which it was captured.

        Raises:
            Retraced: jax has no program for these arrays.
            IndexError, RuntimeError: the program checks its indices, and one is outside
                of its dimension.
        """
        process_watch.begin_call(self.name, arrays)
        # No context managers here: each takes as long as ten arrays.
        try:
            if self.draws or self._checks_indices:
                return self._run_with_keys(arrays)
            return self._jitted(arrays)(*self._arguments(arrays))
        except CACHE_ERRORS as error:
            explain_cache(error, self.name)
            raise
        except KeyboardInterrupt as interrupt:
            clear_if_spoiled(interrupt)
            raise

    @property
    def is_pure(self) -> bool:
        """Whether a run changes nothing: no memory, no generator, nothing outside."""
        return not (
            self.donated
            or self.draws
            or self._checks_indices
            or self.captured.program.effects
        )

    def _run_with_keys(self, arrays: Sequence[Any]) -> list[Any]:
        jitted = self._jitted(arrays)
        with randomness.restored(self.draws, only_after=Retraced):
            keys = self._padded(randomness.take_keys(self.draws))
            arguments = self._arguments(arrays, keys)
            if not self._checks_indices:
                return jitted(*arguments)
            with index_checks.watched():
                return jax.block_until_ready(jitted(*arguments))

    def lower(self, arrays: Sequence[Any]) -> Any:
        """jax.stages.Lowered for these arrays, or jax.ShapeDtypeStructs."""
        return self.trace(arrays).lower()

    @cleared_if_spoiled()
    def trace(self, arrays: Sequence[Any]) -> Any:
        """jax.stages.Traced for these arrays, or jax.ShapeDtypeStructs.

        Raises:
            Retraced: as for a call.
        """
        keys = [np.zeros(aval.shape, aval.dtype) for aval in self._key_avals]
        return self._jitted(arrays).trace(*self._arguments(arrays, keys))

    def _jitted(self, arrays: Sequence[Any]) -> Any:
        """The jitted program with the compiler's options for these arrays."""
        options = options_of(arrays, updates_cache=self._updates_cache)
        key = tuple(options.items())
        if key not in self._jitted_by_options:
            self._jitted_by_options[key] = self._jit(options)
        return self._jitted_by_options[key]

    def _jit(self, options: dict[str, str]) -> Any:
        evaluate = jaxpr_as_fun(self.captured.program)
        order = self._order or range(self.count)
        places = {number: place for place, number in enumerate(order)}
        is_traced = False

        def run_program(*arrays: Any) -> list[Any]:
            nonlocal is_traced
            # Without tracers jax looks for the operation that made a NaN, or runs
            # everything operation by operation.
            leaves = jax.tree.leaves(arrays)
            is_trace = any(isinstance(array, Tracer) for array in leaves)
            if is_traced and is_trace:
                raise Retraced
            is_traced = is_traced or is_trace
            if self._order is not None:
                given = [arrays[places[number]] for number in range(self.count)]
                arrays = (*given, *arrays[self.count :])
            return evaluate(*jax.tree.leaves(arrays))

        # What profilers, and the files of the persistent cache, call the program.
        run_program.__name__ = re.sub(r"\W+", "_", self.name)
        return jax.jit(
            run_program,
            donate_argnums=()
            if self._checks_indices
            else tuple(places[number] for number in self.donated),
            compiler_options=options,
        )

    def _arguments(
        self, arrays: Sequence[Any], keys: Sequence[Any] = ()
    ) -> Sequence[Any]:
        if self._order is None:
            return [*arrays, *keys] if keys else arrays
        return [*(arrays[number] for number in self._order), *keys]

    def _padded(self, keys: randomness.ProgramKeys) -> list[Any]:
        """The keys that are inputs, with as many rows as when the code was run."""
        padded = []
        for number, aval in zip(self._key_places, self._key_avals, strict=True):
            whole = np.zeros(aval.shape, aval.dtype)
            whole[: len(keys.arrays[number])] = keys.arrays[number]
            padded.append(whole)
        return padded
