"""A captured program, compiled: it takes arrays one by one, and gives a list of them.

Its arguments have no structure that jax would take apart and compare in each call: for
a model of 80 layers that takes 2 milliseconds.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

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
from tpuport.compilation.programs.traced_once import Retraced
from tpuport.hardware import process_watch


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
        self._no_keys = [
            np.zeros(aval.shape, aval.dtype) for aval in captured.key_avals
        ]
        self.count = len(captured.program.in_avals) - len(self._no_keys)
        self._function = captured.function
        # jax gives donated arrays to results of their form in order.
        self._order: tuple[int, ...] | None = None
        places: Sequence[int] = self.donated
        if self.donated != tuple(sorted(self.donated)):
            kept = sorted(set(range(self.count)).difference(self.donated))
            self._order = (*kept, *self.donated)
            self._function = captured.reordered(self._order).function
            places = range(len(kept), self.count)
        self._donated_places = () if checks_indices else tuple(places)
        # Most programs draw nothing.
        self.draws = tuple(draw for draw in captured.draws if draw[1])
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
            return self._jitted(arrays)(*self._arguments(arrays, self._no_keys))
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
        return self._jitted(arrays).trace(*self._arguments(arrays, self._no_keys))

    def _jitted(self, arrays: Sequence[Any]) -> Any:
        """The jitted program with the compiler's options for these arrays."""
        options = options_of(arrays, updates_cache=self._updates_cache)
        key = tuple(options.items())
        if key not in self._jitted_by_options:
            self._jitted_by_options[key] = jax.jit(
                self._function,
                donate_argnums=self._donated_places,
                compiler_options=options,
            )
        return self._jitted_by_options[key]

    def inputs(self, arrays: Sequence[Any]) -> list[Any]:
        """What `lower` of these arrays takes: keys of draws, too, used or not."""
        return self._arguments(arrays, self._no_keys)

    def _arguments(self, arrays: Sequence[Any], keys: Sequence[Any]) -> list[Any]:
        if self._order is not None:
            arrays = [arrays[number] for number in self._order]
        return [*arrays, *keys]

    def _padded(self, keys: randomness.ProgramKeys) -> list[Any]:
        """The keys of all sources, with as many rows as when the code was run."""
        arrays = keys.by_source()
        padded = []
        for (source, count), no_keys in zip(
            self.captured.draws, self._no_keys, strict=True
        ):
            rows = no_keys.copy()
            if count:
                rows[:count] = arrays[source]
            padded.append(rows)
        return padded
