"""A function of trees of arrays whose calls run compiled programs."""

import functools
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax

from tpuport.compat import index_checks, randomness
from tpuport.compilation.programs.capture import capture
from tpuport.compilation.programs.flat_program import FlatProgram
from tpuport.compilation.programs.interrupted_caches import cleared_if_spoiled
from tpuport.compilation.programs.passes import Draft, run_passes
from tpuport.compilation.programs.persistent_cache import use_persistent_cache
from tpuport.compilation.programs.program_settings import current_surroundings
from tpuport.compilation.programs.program_table import ProgramTable
from tpuport.compilation.programs.traced_once import Retraced

logger = logging.getLogger("tpuport")


class _Compiled(NamedTuple):
    """A program, and the structure of what the function gives."""

    flat: FlatProgram
    structure: Any


# What is done with the program of a call, and its arguments: the weights, and all other
# arrays one by one.
_Use = Callable[[_Compiled, tuple], Any]


class Program:
    """A function whose calls run compiled programs, each captured once.

    Arguments by position are trees of arrays, the first of them the weights; those by
    name are static. Random numbers are others in each call.

    Args:
        function: what is captured.
        name: what logs call it.
        donated: positions of the arguments whose memory the results take.
        updates_cache: as in `compiler_options`.

    Attributes:
        compilations: how often the function has been captured and compiled.
        checks_indices: whether the programs check their indices, as
            TPUPORT_CHECK_INDICES asks for. Nothing is donated then, so that the caller
            has everything after an error.
    """

    def __init__(
        self,
        function: Callable,
        name: str,
        *,
        donated: Sequence[int] = (),
        updates_cache: bool = False,
    ) -> None:
        self.name = name
        self.compilations = 0
        self.checks_indices = index_checks.asked_for_by_environment()
        self._function = function
        self._donated = tuple(donated)
        self._updates_cache = updates_cache
        self._programs: ProgramTable[_Compiled] = ProgramTable()
        use_persistent_cache()

    def __call__(self, *args: Any, **static: Hashable) -> Any:
        """Run the program.

        Raises:
            IndexError, RuntimeError: the program checks its indices, and one is outside
                of its dimension.
        """
        return self._use_program(_run, args, static)

    def rehearse(self, *args: Any, **static: Hashable) -> Any:
        """Run the program for its compilation alone: it moves no random generator
        on.
        """
        return self._use_program(_rehearse, args, static)

    def lower(self, *args: Any, **static: Hashable) -> Any:
        """jax.stages.Lowered for these arguments (arrays or jax.ShapeDtypeStruct)."""
        return self._use_program(
            lambda program, args: program.flat.lower(args), args, static
        )

    def program_of(self, *args: Any, **static: Hashable) -> FlatProgram:
        """The program for these arguments, captured if it is a new one."""
        return self._use_program(_find, args, static)

    def _use_program(self, use: _Use, args: tuple, static: dict[str, Hashable]) -> Any:
        # Of weights there are hundreds, and calls rarely differ in their shapes alone:
        # then jax finds it out.
        arrays, structure = jax.tree.flatten(args[1:])
        forms = [
            _forms[getattr(array, "aval", None) or _describe(array)] for array in arrays
        ]
        key = structure, tuple(forms), tuple(static.items()), current_surroundings()
        # Trees of states have nodes that Python takes apart, which is done once.
        flat = args[0], *arrays
        for program in self._programs.known(key):
            try:
                return use(program, flat)
            except Retraced:
                continue
        program = self._capture(args, static)
        self._programs.add(key, program)
        return use(program, flat)

    @cleared_if_spoiled()
    def _capture(self, args: tuple, static: dict[str, Hashable]) -> _Compiled:
        arrays, structure = jax.tree.flatten(args[1:])

        def run(weights: Any, *arrays: Any) -> Any:
            return self._function(weights, *structure.unflatten(arrays), **static)

        captured = capture(
            run, (args[0], *arrays), self.name, checks_indices=self.checks_indices
        )
        self.compilations += 1
        logger.debug("compiling %s, time %d", self.name, self.compilations)
        flat = FlatProgram(
            self.name,
            run_passes(Draft(captured)).captured,
            _numbers_of(self._donated, args),
            checks_indices=self.checks_indices,
            updates_cache=self._updates_cache,
        )
        return _Compiled(flat, jax.tree.structure(captured.results))


def _run(program: _Compiled, args: tuple) -> Any:
    return program.structure.unflatten(program.flat(args))


def _find(program: _Compiled, args: tuple) -> FlatProgram:
    program.flat.trace(args)  # or it is another's call
    return program.flat


def _rehearse(program: _Compiled, args: tuple) -> Any:
    with randomness.restored(program.flat.draws):
        return _run(program, args)


def _numbers_of(positions: Sequence[int], args: tuple) -> tuple[int, ...]:
    """The numbers of the arrays in the arguments at these positions, behind the
    weights.
    """
    numbers: list[int] = []
    first = 1
    for position, argument in enumerate(args[1:], 1):
        behind = first + len(jax.tree.leaves(argument))
        if position in positions:
            numbers += range(first, behind)
        first = behind
    return tuple(numbers)


class _Forms(dict[Any, Any]):
    """The shapes and dtypes that jax makes programs for, by its descriptions of arrays,
    which also have a mesh.
    """

    def __missing__(self, description: Any) -> Any:
        form = jax.ShapeDtypeStruct(
            description.shape, description.dtype, weak_type=description.weak_type
        )
        return self.setdefault(description, jax.typeof(form))


_forms = _Forms()


def _describe(array: Any) -> Any:
    """The description of an array of numpy, or of a number."""
    dtype = getattr(array, "dtype", None)
    return jax.typeof(array) if dtype is None else _describe_form(array.shape, dtype)


@functools.cache
def _describe_form(shape: tuple[int, ...], dtype: Any) -> Any:
    # For every number among the arguments jax would take microseconds.
    return jax.typeof(jax.ShapeDtypeStruct(shape, dtype))
