"""A jitted function that counts its compilations, and warns if one argument keeps
causing them.
"""

import contextlib
import functools
import inspect
import logging
import os
import re
import traceback
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import torch

from tpuport.compat import autocast, index_checks, randomness
from tpuport.compilation.interrupted_caches import cleared_if_spoiled
from tpuport.errors import PortError
from tpuport.hardware import (
    compiler_options,
    generation_of_kind,
    local_generation,
    process_watch,
)
from tpuport.internals.jax_internals import is_any_trace_under_way

logger = logging.getLogger("tpuport")

# Fewer compilations are normal in the life of a program: a prompt, a step, a second
# length.
_FIRST_WARNING = 4
_VALUES_SHOWN = 4
# The first counts the draws, the second has keys for them; more only if the code
# changes from trace to trace.
_MOST_TRACES = 4
# What jax and XLA say of a program that is not the one that was asked for, and the name
# of the function that is traced.
_OTHER_PROGRAM = re.compile(
    r"safe_zip\(\) argument|INVALID_ARGUMENT: .*RuntimeProgramInputMismatch"
)
_TRACED = "counted"


class ShapeText(str):
    """The description of a tensor; the description of any other argument is a plain
    string.
    """

    __slots__ = ()


class HostText(str):
    """The description of a tensor whose values are a part of the program."""

    __slots__ = ()


class CounterText(str):
    """The description of a number that a cache of a library keeps."""

    __slots__ = ()


class StateText(str):
    """The description of a value that is not an argument, such as an attribute of a
    module.
    """

    __slots__ = ()


class ChangedArgument(NamedTuple):
    """What one program has other than the one before it.

    Attributes:
        name: of the argument, or where a value of the function's state is: "cache.pos".
        before, after: its descriptions.
        kind: a "tensor" has another shape or dtype; a "value" is a Python value among
            the arguments, a "state" one that the function reaches in another way, such
            as an attribute of a module.
    """

    name: str
    before: str
    after: str
    kind: Literal["tensor", "value", "state"]


class Program:
    """A jitted function that counts its compilations, and whose random numbers are
    others in each call.

    If the function draws, the keys of its draws become an argument of the program
    (`compat.randomness`), and it is traced once more. A program that draws nothing has
    no such argument.

    Args:
        function: what is traced and compiled.
        name: what warnings call it.
        describe: returns, for the function's arguments, a description of each by name;
            arguments with equal descriptions share a program, and one that is None is
            not counted. None: nothing is warned about.
        epoch: returns a key for the function's arguments. A new key means that earlier
            programs were dropped on purpose, so that the count for warnings starts
            again.
        check_indices: whether the program checks its indices; None: if
            TPUPORT_CHECK_INDICES asks for it. Nothing is donated then, so that the
            caller has everything after an error.
        updates_cache: as in `compiler_options`.
        jit_options: for `jax.jit`.

    Attributes:
        compilations: how often the function has been traced and compiled.
        checks_indices: whether the program checks its indices.
    """

    def __init__(
        self,
        function: Callable,
        name: str,
        describe: Callable[..., dict[str, str] | None] | None = None,
        epoch: Callable[..., Hashable] | None = None,
        check_indices: bool | None = None,
        updates_cache: bool = False,
        **jit_options: Any,
    ) -> None:
        self.name = name
        self._updates_cache = updates_cache
        self.compilations = 0
        self._forgotten = 0
        if check_indices is None:
            check_indices = index_checks.asked_for_by_environment()
        self.checks_indices = check_indices
        if self.checks_indices:
            jit_options.pop("donate_argnums", None)
            jit_options.pop("donate_argnames", None)
        self._describe = describe
        self._epoch = epoch
        self._current_epoch: Hashable = None
        self._descriptions: list[dict[str, str]] = []
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
            self._count_compilation(args, kwargs)
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
        options = _options_of(arguments, self._updates_cache)
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
        with _explained_cache(self.name):
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

    def forget_trace(self) -> None:
        """Count the last trace no longer: another program serves its calls."""
        self.compilations -= 1
        self._forgotten += 1

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

    def latest_changes(self) -> list[ChangedArgument]:
        """What the program that was compiled last has other than the one before it, by
        name.
        """
        if len(self._descriptions) < 2:
            return []
        before, after = self._descriptions[-2:]
        return [
            ChangedArgument(
                name,
                before.get(name, "absent"),
                text,
                _kind_of(before.get(name, text), text),
            )
            for name, text in after.items()
            if before.get(name) != text
        ]

    def _count_compilation(self, args: tuple, kwargs: dict) -> None:
        self.compilations += 1
        logger.debug("compiling %s, time %d", self.name, self.compilations)
        if self._describe is None:
            return
        if self._epoch is not None:
            self._start_epoch(self._epoch(*args, **kwargs))
        description = self._describe(*args, **kwargs)
        if description is None:
            return
        self._descriptions.append(description)
        count = len(self._descriptions)
        # At 4, 8, 16, ...: who knows about it and goes on does not want to read it each
        # time.
        is_power_of_two = count & (count - 1) == 0
        if count >= _FIRST_WARNING and is_power_of_two:
            reason = _explain_recompilation(self._descriptions)
            verb = "traced" if self._forgotten else "compiled"
            logger.warning("%s has been %s %d times%s.", self.name, verb, count, reason)

    def _start_epoch(self, epoch: Hashable) -> None:
        if epoch != self._current_epoch:
            self._current_epoch = epoch
            self._descriptions.clear()


def current_surroundings() -> Hashable:
    """The settings of torch that a program is made for."""
    return autocast.state(), torch.get_default_dtype()


def _options_of(arguments: Any, updates_cache: bool) -> dict[str, str]:
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


def _kind_of(before: str, after: str) -> Literal["tensor", "value", "state"]:
    if isinstance(after, StateText):
        return "state"
    # A number that has become a tensor is a change of a value.
    if isinstance(before, ShapeText) and isinstance(after, ShapeText):
        return "tensor"
    return "value"


def _with_surroundings(signature: inspect.Signature) -> inspect.Signature:
    """The signature with the argument that `Program` adds; jax looks up the names of
    static arguments there.
    """
    added = inspect.Parameter("surroundings", inspect.Parameter.KEYWORD_ONLY)
    parameters = [*signature.parameters.values(), added]
    parameters.sort(key=lambda parameter: parameter.kind)
    return signature.replace(parameters=parameters)


def _explain_recompilation(descriptions: list[dict[str, str]]) -> str:
    """Which argument has had the most values, and what to do about it."""
    values: dict[str, set[str]] = {
        name: {description.get(name, "absent") for description in descriptions}
        for name in descriptions[-1]
    }

    def count(name: str) -> tuple[int, bool]:
        # What counts along with a length is not to blame for it.
        has_shapes = any(isinstance(text, ShapeText) for text in values[name])
        return len(values[name]), has_shapes

    name = max(values, key=count, default="")
    different = sorted(values.get(name, ()))
    if len(different) < 2:
        return " for the same arguments: its hooks, functions, attention or placement keep changing"
    shown = ", ".join(different[:_VALUES_SHOWN])
    return f": {name} keeps changing ({shown}). {_suggest_remedy(name, different)}"


def _suggest_remedy(name: str, different: list[str]) -> str:
    if any(isinstance(text, CounterText) for text in different):
        return (
            "The cache counts in Python: tpuport.generate keeps windows in a cache of its own, and a StaticCache made "
            "of a config without sliding_window counts on the device"
        )
    if any(isinstance(text, StateText) for text in different):
        return "Let it be a tensor on the device, which is an argument of the program, or leave it as it is"
    if all(isinstance(text, HostText) for text in different):
        return (
            "Its values decide shapes: give it few different values, such as images of the same sizes "
            "(docs/compiled-functions.md, 'Values that decide shapes')"
        )
    if not any(isinstance(text, ShapeText) for text in different):
        if not all(map(is_number_text, different)):
            return (
                "It is a part of the program: pass what the code computes from it, as a tensor, or give it few "
                "different values"
            )
        return (
            f"Pass it as a tensor. tpuport.compile(..., traced=[{name!r}]) makes one of a number; the code must "
            "not slice with it then (docs/compiled-functions.md, 'Your own objects')"
        )
    # A shape is written "float32(2, 5)": without dtypes, equal texts have equal sizes.
    sizes = {text.partition("(")[2] for text in different}
    if len(sizes) == 1:
        return "Give it one dtype"
    return "Pad it to a few fixed lengths"


def is_number_text(text: str) -> bool:
    """Whether a text is that of a number of Python's."""
    try:
        float(text)
    except ValueError:
        return False
    return True


@contextlib.contextmanager
def _explained_cache(name: str) -> Iterator[None]:
    """Explain what jax and XLA raise where the directory has the file of another
    program in the place of this one's.

    They notice that only by the numbers and shapes of arguments and results.
    """
    settings: Any = jax.config
    try:
        yield
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        message = str(error)
        if not settings.jax_compilation_cache_dir or not _OTHER_PROGRAM.match(message):
            raise
        # The same message may come from the function while it is traced.
        if any(
            frame.f_code.co_name == _TRACED
            for frame, _ in traceback.walk_tb(error.__traceback__)
        ):
            raise
        raise PortError(
            "the compiled program that was kept on disk is another one, by its arguments or results",
            where=f"{name}, in {settings.jax_compilation_cache_dir}",
            fix="delete that directory; programs are compiled again",
        ) from error


def use_persistent_cache() -> None:
    """Keep compiled programs on disk between runs, in the user's cache directory.

    A directory that the user has set (JAX_COMPILATION_CACHE_DIR or jax.config) is left
    alone. TPUPORT_COMPILATION_CACHE names another directory, or is "off".
    """
    requested = os.environ.get("TPUPORT_COMPILATION_CACHE", "")
    settings: Any = jax.config
    if requested == "off" or settings.jax_compilation_cache_dir:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jax.config.update(
        "jax_compilation_cache_dir", requested or str(home / "tpuport" / "xla")
    )
