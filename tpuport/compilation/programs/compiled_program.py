"""A jitted function that counts its compilations, and whose random numbers are others
in each call.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Hashable
from typing import Any

import jax
import torch

from tpuport.compat import autocast, index_checks, randomness
from tpuport.compilation.programs.interrupted_caches import cleared_if_spoiled
from tpuport.compilation.programs.persistent_cache import (
    explained_cache,
    use_persistent_cache,
)
from tpuport.errors import PortError
from tpuport.hardware import (
    compiler_options,
    generation_of_kind,
    local_generation,
    process_watch,
)
from tpuport.internals.jax_internals import is_any_trace_under_way

logger = logging.getLogger("tpuport")

# The first counts the draws, the second has keys for them; more only if the code
# changes from trace to trace.
_MOST_TRACES = 4


class Program:
    """A jitted function that counts its compilations, and whose random numbers are
    others in each call.

    If the function draws, the keys of its draws become an argument of the program
    (`compat.randomness`), and it is traced once more. A program that draws nothing has
    no such argument.

    Args:
        function: what is traced and compiled.
        name: what logs call it.
        updates_cache: as in `compiler_options`.
        jit_options: for `jax.jit`.

    Attributes:
        compilations: how often the function has been traced and compiled.
        checks_indices: whether the program checks its indices, as TPUPORT_CHECK_INDICES
            asks for. Nothing is donated then, so that the caller has everything after
            an error.
    """

    def __init__(
        self,
        function: Callable,
        name: str,
        updates_cache: bool = False,
        **jit_options: Any,
    ) -> None:
        self.name = name
        self._updates_cache = updates_cache
        self.compilations = 0
        self.checks_indices = index_checks.asked_for_by_environment()
        if self.checks_indices:
            jit_options.pop("donate_argnums", None)
            jit_options.pop("donate_argnames", None)
        self._draws: dict[Hashable, randomness.Draws] = {}

        # jax runs the Python function once for each new program, and only then.
        @functools.wraps(function)
        def counted(
            *args: Any,
            surroundings: Hashable,
            random_keys: randomness.ProgramKeys | None = None,
            **kwargs: Any,
        ) -> Any:
            del surroundings  # jax makes another program for another value
            with (
                randomness.program_stream(random_keys),
                index_checks.checking(self.checks_indices),
            ):
                output = function(*args, **kwargs)
            # Afterwards: a trace that lacks keys is followed by one that has them.
            self.compilations += 1
            logger.debug("compiling %s, time %d", self.name, self.compilations)
            return output

        counted.__signature__ = _with_surroundings(inspect.signature(function))  # type: ignore[attr-defined]
        static_names = (*jit_options.pop("static_argnames", ()), "surroundings")
        self._jit = functools.partial(
            jax.jit, counted, static_argnames=static_names, **jit_options
        )
        self._jitted_by_options: dict[tuple[tuple[str, str], ...], Any] = {}
        use_persistent_cache()

    def _jitted(self, arguments: Any) -> Any:
        """The jitted function with the compiler's options for these arguments."""
        options = options_of(arguments, updates_cache=self._updates_cache)
        key = tuple(options.items())
        if key not in self._jitted_by_options:
            self._jitted_by_options[key] = self._jit(compiler_options=options)
        return self._jitted_by_options[key]

    def __call__(self, *args: Any, signature: Hashable = None, **kwargs: Any) -> Any:
        """Run the program.

        Args:
            signature: a key of what a program is compiled for; calls that share it
                share the number of draws.

        Raises:
            IndexError, RuntimeError: the program checks its indices, and one is outside
                of its dimension.
        """
        return self._run(signature, args, kwargs, moves_generators=True)

    def rehearse(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program for its compilation alone: as `lower` does, it moves no
        random generator on.
        """
        return self._run(None, args, kwargs, moves_generators=False)

    def _run(
        self,
        signature: Hashable,
        args: tuple,
        kwargs: dict[str, Any],
        *,
        moves_generators: bool,
    ) -> Any:
        process_watch.begin_call(self.name, (args, kwargs))
        with explained_cache(self.name):
            return self._call(
                signature, args, kwargs, moves_generators=moves_generators
            )

    def _call(
        self,
        signature: Hashable,
        args: tuple,
        kwargs: dict[str, Any],
        *,
        moves_generators: bool,
    ) -> Any:
        run = functools.partial(
            self._with_keys,
            self._jitted((args, kwargs)),
            signature,
            args,
            kwargs,
            moves_generators=moves_generators,
        )
        if not self.checks_indices:
            return run()
        with index_checks.watched():
            return jax.block_until_ready(run())

    def lower(self, *args: Any, signature: Hashable = None, **kwargs: Any) -> Any:
        """jax.stages.Lowered for these arguments (arrays or jax.ShapeDtypeStruct)."""
        return self._with_keys(
            self._jitted((args, kwargs)).lower, signature, args, kwargs
        )

    def trace(self, *args: Any, signature: Hashable = None, **kwargs: Any) -> Any:
        """The jax.stages.Traced for these arguments; traces the function if a call
        would.
        """
        return self._with_keys(
            self._jitted((args, kwargs)).trace, signature, args, kwargs
        )

    @cleared_if_spoiled()
    def _with_keys(
        self,
        stage: Callable,
        signature: Hashable,
        args: tuple,
        kwargs: dict[str, Any],
        *,
        moves_generators: bool = False,
    ) -> Any:
        """Call the jitted function, or a stage of it, with keys for the draws that the
        program is known to make.
        """
        surroundings = current_surroundings()
        signature = (signature, surroundings)
        stage = functools.partial(stage, surroundings=surroundings)
        for _ in range(_MOST_TRACES):
            draws = self._draws.get(signature)
            try:
                if draws is None:
                    return stage(*args, **kwargs)
                only_after = randomness.MoreKeysNeeded if moves_generators else None
                with randomness.restored(draws, only_after=only_after):
                    keys = (
                        randomness.take_keys(draws)
                        if moves_generators
                        else randomness.example_keys(draws)
                    )
                    return stage(*args, **kwargs, random_keys=keys)
            except randomness.MoreKeysNeeded as needed:
                self._draws[signature] = needed.draws
        raise PortError(
            "this code draws another number of random numbers each time it is traced",
            where=self.name,
            fix="let the number of draws not depend on random choices in Python",
        )


def current_surroundings() -> Hashable:
    """The settings of torch that a program is made for."""
    return autocast.state(), torch.get_default_dtype()


def options_of(arguments: Any, *, updates_cache: bool = False) -> dict[str, str]:
    """The options with which a program for these arguments is compiled."""
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


def _with_surroundings(signature: inspect.Signature) -> inspect.Signature:
    """The signature with the argument that `Program` adds; jax looks up the names of
    static arguments there.
    """
    added = inspect.Parameter("surroundings", inspect.Parameter.KEYWORD_ONLY)
    parameters = [*signature.parameters.values(), added]
    parameters.sort(key=lambda parameter: parameter.kind)
    return signature.replace(parameters=parameters)
