"""Values that a model computes and decides by: computed before each call, and a part of
its program's key.

A model may select, cut or branch by what it computes of its inputs: images that are all
zeros, scores above a threshold. The program of a call is made for these values.
Programs of their own compute them, each up to the next value that the code asks for: a
branch that is taken only for one value may ask for others. Such a program runs again
when an array changes that its values follow from. From sizes and weights alone they
follow once, and from the inputs of a prompt once for all its steps.
"""

import logging
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import jax
from jax.extend.core import jaxpr_as_fun

from tpuport.compat import randomness
from tpuport.compat.asked_values import AskedValues, ValuesNeeded
from tpuport.compat.jaxprs import keep_used_arguments, walk_equations, without_dead_code
from tpuport.errors import PortError
from tpuport.objects.state.host_input import HostInput

logger = logging.getLogger("tpuport")

# The values in the order in which the code asks for them.
Path = tuple[HostInput, ...]
# By what nothing can decide the operations that compute it. Every draw makes a key of
# its words.
_UNDECISIVE: Final[dict[str, frozenset[str]]] = {
    "what its weights compute, which is rounded in another way than in torch": frozenset(
        {"dot_general", "ragged_dot_general", "conv_general_dilated"}
    ),
    "random numbers, which are others than torch's": frozenset({"random_wrap"}),
}
# Each takes a trace to find.
_MOST_STEPS: Final = 64
# `run(arrays..., answers=...)` traces the function with these answers.
Run = Callable[..., Any]


def _check_decisive(traced: Any) -> None:
    """PortError if a result of a traced program depends on what is another number in
    torch: products and convolutions, which each device rounds in its own way, or random
    numbers.
    """
    visits = walk_equations(without_dead_code(traced))
    names = {visit.equation.primitive.name for visit in visits}
    for kind, of_kind in _UNDECISIVE.items():
        if names & of_kind:
            raise PortError(
                f"the code decides by {kind}",
                where="a value that it asks for while tracing",
            )


def _check_there(arrays: Sequence[Any]) -> None:
    """PortError if there is nothing but the shape of one of these arrays."""
    if any(isinstance(array, jax.ShapeDtypeStruct) for array in arrays):
        raise PortError(
            "the code decides by values that are not there yet",
            where="a value that it asks for while tracing",
        )


class _StepProgram:
    """Computes all values up to those that are asked for after a path.

    Attributes:
        is_last: whether nothing is asked for after them; known after the first call.
        used: which of the arrays the values follow from; None before the first call.
    """

    def __init__(self, path: Path) -> None:
        self.is_last = False
        self.used: tuple[int, ...] | None = None
        self._path = path
        self._run: Run | None = None
        # Of the arrays that are used.
        self._compiled: Callable[..., list[jax.Array]] | None = None
        self._values: Path = ()
        # The arrays that the values were computed from; None before they were.
        self._sources: list[weakref.ref[jax.Array]] | None = None

    def __call__(self, run: Run, arrays: tuple) -> Path:
        leaves = jax.tree.leaves(arrays)
        self._run = run
        try:
            if self._compiled is None or self.used is None:
                traced = jax.jit(self._trace).trace(*arrays).jaxpr
                _check_decisive(traced)
                self.used, needed = keep_used_arguments(traced)
                self._compiled = jax.jit(jaxpr_as_fun(needed))
            sources = [leaves[number] for number in self.used]
            _check_there(sources)
            if not self._are_sources(sources):
                self._values = tuple(map(HostInput.of, self._compiled(*sources)))
                self._sources = list(map(weakref.ref, sources))
        finally:
            # It refers to the call, and a program outlives it.
            self._run = None
        return self._values

    def _are_sources(self, arrays: Sequence[jax.Array]) -> bool:
        """Whether the values were computed from these very arrays, which are never
        written to.
        """
        return self._sources is not None and all(
            source() is array
            for source, array in zip(self._sources, arrays, strict=True)
        )

    def _trace(self, *arrays: Any) -> list[Any]:
        """Traced. The arrays that are asked for, none of which is random, so that draws
        may get any key.
        """
        assert self._run is not None
        answers = AskedValues([value.as_tensor() for value in self._path])
        with randomness.any_stream():
            try:
                self._run(*arrays, answers=answers)
                self.is_last = True
            except ValuesNeeded:
                pass
        return answers.asked


class DecidedValues:
    """The programs that compute what a function decides by, and the values that it
    had.

    Args:
        only_from_weights: whether it may decide by nothing that follows from the
            arguments of a call.
    """

    def __init__(self, *, only_from_weights: bool = False) -> None:
        self._only_from_weights = only_from_weights
        self._programs: dict[tuple[Hashable, Path], _StepProgram] = {}
        # All values that were seen, by those that come first.
        self._whole_paths: dict[tuple[Hashable, Path], Path] = {}

    def find(self, key: Hashable, run: Run, arrays: tuple) -> Path | None:
        """All values for a call, or None if the code asks for too many, or for others
        than it may.

        Args:
            key: of all that `run` depends on beside values.
            run: traces the function, given the arrays and `answers`, an `AskedValues`.
            arrays: of the call, the weights first. A jax.ShapeDtypeStruct stands for
                one that is not there yet, by which the code may not decide.
        """
        weights = len(jax.tree.leaves(arrays[0]))
        path: Path = self._whole_paths.get((key, ()), ())
        for _ in range(_MOST_STEPS):
            program = self._programs.get((key, path)) or _StepProgram(path)
            values = program(run, arrays)
            if self._only_from_weights and any(
                number >= weights for number in program.used or ()
            ):
                return None
            self._programs[key, path] = program
            agreeing = _count_agreeing(path, values)
            if agreeing < len(path):
                path = values[: agreeing + 1]
            elif program.is_last:
                self._remember(key, path)
                return path
            else:
                path = values
            path = self._whole_paths.get((key, path), path)
        return None

    def _remember(self, key: Hashable, path: Path) -> None:
        for count in range(len(path) + 1):
            self._whole_paths[key, path[:count]] = path


def _count_agreeing(path: Sequence[HostInput], values: Sequence[HostInput]) -> int:
    """How many values at the beginning are those of the path."""
    count = 0
    for expected, actual in zip(path, values, strict=False):
        if expected != actual:
            break
        count += 1
    return count


def warn_of_decided(name: str, path: Path) -> None:
    """Say what a program decides by, and what that costs."""
    logger.warning(
        "%s decides by values that it computes, such as %r: each call computes them first, and other values compile "
        "another program (docs/compiled-functions.md, 'Values that decide shapes')",
        name, path[0],
    )  # fmt: skip
