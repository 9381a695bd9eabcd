"""Random numbers on the device, from the states of torch's own generators.

torch's default generator, and any `torch.Generator`, stays the one place that knows how
far a sequence of random numbers has got. A draw takes 64 bits from the generator, on
the host, and they are the key of jax's sampler. So `torch.manual_seed`,
`torch.get_rng_state`, `torch.random.fork_rng` and a generator's own methods work as
ever, and a number depends neither on the devices that compute it nor on whether it is
computed eagerly or in a program.

A program takes the keys of its draws as an argument (`ProgramKeys`). How many it needs,
and of which generators, is counted while it is traced (`program_stream`).
"""

import contextlib
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.core import Tracer, eval_context
from jax.extend.core import get_opaque_trace_state

from tpuport.base.temporary import temporary_attributes
from tpuport.compat.randomness.program_keys import LoopGuard, ProgramKeys, Source
from tpuport.compat.user_frames import user_line
from tpuport.errors import PortError
from tpuport.internals.torch_internals import outside_of_modes

# Fixed: another one may be jax's default, and only this one gives the same numbers on
# any number of devices.
_KEY_KIND = "threefry2x32"
_WORDS_PER_KEY = 2
# Keys of each generator in the first trace of a program.
_FIRST_ROWS = 64
_are_processes_compared = False
# Also while a program is traced, where `generator_states` refuses the methods.
_get_state = torch.Generator.get_state
_set_state = torch.Generator.set_state

Draws = tuple[tuple[Source, int], ...]


class MoreKeysNeeded(Exception):
    """A traced program draws more random numbers than it was given keys for.

    Attributes:
        draws: how many keys the program needs of each generator.
    """

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self.draws = draws


class _ProgramStream:
    """Counts the draws of a program that is traced, and gives them the keys among its
    arguments.

    Only numbers are kept of what is drawn, so that no value of an inner trace is.

    Args:
        keys: the argument.
        has_all_keys: whether an earlier trace has shown which generators there are.

    Attributes:
        place: where the trace begins.
        has_too_few_keys: whether some draws got a key that is not a generator's.
        default_draws: how many draws of torch's default generator are traced.
    """

    def __init__(self, keys: ProgramKeys, *, has_all_keys: bool) -> None:
        self.place = LoopGuard()
        self._has_all_keys = has_all_keys
        self.has_too_few_keys = False
        self.default_draws = 0
        self._counts: dict[Source, int] = {}
        self._keys = keys.by_source()
        self._states = _states(self._keys)

    @property
    def root(self) -> "_ProgramStream":
        return self

    def reserve(self, source: Source, amount: int) -> int:
        """The index of the first of the next draws from a source."""
        first = self._counts.get(source, 0)
        self._counts[source] = first + amount
        return first

    def read(self, source: Source, first: int, amount: int) -> Any:
        """Keys [amount, 2] for draws that were reserved."""
        array = self._keys.get(source)
        if array is None or first + amount > array.shape[0]:
            self.has_too_few_keys = True
            # Behind a barrier: the compiler would otherwise draw the numbers itself,
            # which can take minutes.
            return jax.lax.optimization_barrier(
                np.zeros((amount, _WORDS_PER_KEY), np.uint32)
            )
        # The first row is an operand: blocks whose draws differ only in it can run in a
        # loop.
        return jax.lax.dynamic_slice(
            array, (np.int32(first), np.int32(0)), (amount, _WORDS_PER_KEY)
        )

    def draws(self) -> Draws:
        """The draws so far from generators that are still there: a generator of the
        trace alone is not an argument.
        """
        return tuple(
            (source, count)
            for source, count in self._counts.items()
            if not isinstance(source, weakref.ref) or source() is not None
        )

    def is_created_while_tracing(self, source: Source) -> bool:
        """Whether a generator is none that the first trace left behind."""
        return (
            self._has_all_keys
            and source not in self._keys
            and isinstance(source, weakref.ref)
        )

    def check_seeds(self, source: Source, generator: torch.Generator | None) -> None:
        """Raise an error if traced code has seeded the generator, which no later call
        would do.
        """
        before = self._states.pop(source, None)
        if (
            before is not None
            and generator is not None
            and not _has_state(generator, before)
        ):
            raise PortError(
                "a torch.Generator was seeded or used on the host in compiled code, which happens in the first call "
                "only",
                where=user_line(),
                fix="seed it before the compiled call, and draw from it on the device: device=x.device",
            )


class _LoopStream:
    """Gives keys to the draws in the body of a loop: all of an iteration's follow from
    one key of the stream outside.

    Args:
        outside: the stream around the loop.
        index: traced number of the iteration.
    """

    def __init__(self, outside: "_Stream", index: Any) -> None:
        self.place = LoopGuard()
        self._outside = outside
        self._index = index
        self._positions: dict[Source, int] = {}
        self._counts: dict[Source, int] = {}

    @property
    def root(self) -> _ProgramStream:
        return self._outside.root

    def reserve(self, source: Source, amount: int) -> int:
        """The index of the first of the next draws from a source, in this iteration."""
        if source not in self._positions:
            self._positions[source] = self._outside.reserve(source, 1)
        first = self._counts.get(source, 0)
        self._counts[source] = first + amount
        return first

    def read(self, source: Source, first: int, amount: int) -> Any:
        """Keys [amount, 2] for draws that were reserved."""
        [words] = self._outside.read(source, self._positions[source], 1)
        of_iteration = jax.random.fold_in(_typed(words), self._index)
        keys = [
            jax.random.fold_in(of_iteration, first + number) for number in range(amount)
        ]
        return jnp.stack(list(map(jax.random.key_data, keys)))


_Stream = _ProgramStream | _LoopStream


class _ThreadState(threading.local):
    """The streams of this thread, the innermost last, and the generators among the
    arguments of its call.
    """

    def __init__(self) -> None:
        self.streams: list[_Stream] = []
        self.generators: Sequence[torch.Generator] = ()


_state = _ThreadState()


def next_key(generator: torch.Generator | None = None) -> jax.Array:
    """The key of one draw, for `jax.random`.

    Args:
        generator: None for torch's default generator.

    Raises:
        PortError: the draw would be repeated by a loop or by a program that tpuport
            does not know.
    """
    if _state.streams:
        [words] = _take_traced(generator, 1)
        return _typed(words)
    if not _is_eager():
        import torchax

        own = torchax.default_env().param
        if isinstance(own.prng, Tracer):
            # The program's author hands keys through it:
            # `with env.override_property(prng=key)`.
            return own.get_and_rotate_prng_key()
        raise PortError(
            "a random number is drawn while jax traces a program of your own, and would be the same in each call",
            where=user_line(),
            fix="let tpuport.compile(function) trace it, or draw before the program and pass the numbers in, or "
            "give it a key: with torchax.default_env().override_property(prng=key)",
        )
    [words] = _draw_words(generator, 1)
    return _typed(words)


def _take_traced(generator: torch.Generator | None, amount: int) -> Any:
    """Traced. Keys [amount, 2] for the next draws from a generator in the program that
    is being traced.
    """
    stream = _state.streams[-1]
    source = _source(generator)
    stream.place.check_loops()
    stream.root.check_seeds(source, generator)
    stream.root.default_draws += source is None
    if stream.root.is_created_while_tracing(source):
        # torch draws the same in each call from a generator that each call creates.
        return jax.lax.optimization_barrier(_draw_words(generator, amount))
    return stream.read(source, stream.reserve(source, amount), amount)


def traced_program() -> _ProgramStream | None:
    """The innermost program that this thread traces."""
    return _state.streams[-1].root if _state.streams else None


def is_traced() -> bool:
    """Whether draws of this thread belong to a program that is being traced."""
    return bool(_state.streams)


@contextlib.contextmanager
def program_stream(
    keys: ProgramKeys, *, has_all_keys: bool
) -> Iterator[_ProgramStream]:
    """Traced. Give the draws of a program the keys among its arguments.

    Args:
        keys: some of them, at least.
        has_all_keys: whether an earlier trace has shown which generators there are.

    Yields:
        What knows the number of draws.

    Raises:
        MoreKeysNeeded: at the end, if there were too few keys.
    """
    stream = _ProgramStream(keys, has_all_keys=has_all_keys)
    with _use(stream):
        yield stream
    if stream.has_too_few_keys:
        raise MoreKeysNeeded(stream.draws())


@contextlib.contextmanager
def any_stream() -> Iterator[None]:
    """Traced. Give draws some key where no program has given them one: only the
    program's form matters then.
    """
    if _state.streams:
        yield
        return
    with _use(_ProgramStream(ProgramKeys((), ()), has_all_keys=False)):
        yield


@contextlib.contextmanager
def iteration(index: Any) -> Iterator[None]:
    """Traced. Let the draws in the body of a loop differ from one iteration to the
    next.

    Args:
        index: the traced number of the iteration.
    """
    if not _state.streams:
        yield
        return
    with _use(_LoopStream(_state.streams[-1], index)):
        yield


@contextlib.contextmanager
def _use(stream: _Stream) -> Iterator[None]:
    _state.streams.append(stream)
    try:
        yield
    finally:
        _state.streams.pop()


def call_generators(
    generators: Sequence[torch.Generator],
) -> contextlib.AbstractContextManager[None]:
    """Let programs know the generators among the arguments of a call, in order."""
    return temporary_attributes(_state, generators=generators)


def call_generator(index: int | None) -> torch.Generator:
    """A generator among the arguments of the call that is under way, None for torch's
    default one; outside of any, one that stands for it.
    """
    if index is None:
        return torch.default_generator
    generators = _state.generators
    return generators[index] if index < len(generators) else torch.Generator()


def take_keys(draws: Draws) -> ProgramKeys:
    """The keys for a call of a program, whose generators move on by its draws.

    Raises:
        PortError: the processes of a program that runs in several have different
            states.
    """
    take = _take_traced if _state.streams else _draw_words
    # A program that is called while another one is traced draws what that one would.
    arrays = [take(_generator(source), count) for source, count in draws]
    if not _state.streams and jax.process_count() > 1:
        _check_processes(arrays)
    return ProgramKeys([source for source, _ in draws], arrays)


def example_keys(draws: Draws) -> ProgramKeys:
    """Keys for a program that is only traced. The generators move on, so that a seed in
    traced code is noticed.
    """
    arrays = [_draw_words(_generator(source), count) for source, count in draws]
    return ProgramKeys([source for source, _ in draws], arrays)


@contextlib.contextmanager
def first_keys() -> Iterator[ProgramKeys]:
    """Keys for the first trace of a program: more than most code draws, from torch's
    default generator and from those among the arguments of the call.
    """
    draws = tuple((index, _FIRST_ROWS) for index in range(len(_state.generators)))
    with restored(draws):
        keys = example_keys(draws)
        default = np.zeros((_FIRST_ROWS, _WORDS_PER_KEY), np.uint32)
        yield ProgramKeys((None, *keys.sources), (default, *keys.arrays))


@contextlib.contextmanager
def restored(
    draws: Draws, *, only_after: type[Exception] | None = None
) -> Iterator[None]:
    """Give the generators of draws back their states at the end, or only if an error of
    a class ends it.
    """
    before = [
        (generator, _get_state(generator))
        for generator in (_generator(source) for source, _ in draws)
    ]
    is_restored = only_after is None
    try:
        yield
    except Exception as error:
        is_restored = only_after is None or isinstance(error, only_after)
        raise
    finally:
        if is_restored:
            for generator, state in before:
                _set_state(generator, state)


def _is_eager() -> bool:
    with eval_context():
        eager = get_opaque_trace_state()
    return get_opaque_trace_state() == eager


def _source(generator: torch.Generator | None) -> Source:
    if generator is None or generator is torch.default_generator:
        return None
    for index, argument in enumerate(_state.generators):
        if argument is generator:
            return index
    return weakref.ref(generator)


def _generator(source: Source) -> torch.Generator:
    if source is None:
        return torch.default_generator
    if isinstance(source, int):
        return call_generator(source)
    generator = source()
    # Of a model that dropped its generator after the program was made: nobody can see
    # this one's state.
    return torch.Generator() if generator is None else generator


def _typed(words: Any) -> jax.Array:
    return jax.random.wrap_key_data(words, impl=_KEY_KIND)


def _draw_words(generator: torch.Generator | None, amount: int) -> np.ndarray:
    """Keys [amount, 2], by 63 random bits each; many at once are the same as one after
    the other.
    """
    with outside_of_modes():
        numbers = torch.empty(amount, dtype=torch.int64, device="cpu").random_(
            generator=generator
        )
        return numbers.numpy().view(np.uint32).reshape(amount, _WORDS_PER_KEY)


def _states(keys: Mapping[Source, Any]) -> dict[Source, torch.Tensor]:
    """States of the generators that traced code can reach only on purpose: host code
    draws from the default one.
    """
    return {
        source: _get_state(_generator(source)) for source in keys if source is not None
    }


def _has_state(generator: torch.Generator, state: torch.Tensor) -> bool:
    with outside_of_modes():
        return bool(torch.equal(_get_state(generator), state))


def _check_processes(arrays: list[np.ndarray]) -> None:
    """Compare the keys of all processes, once: those of a run go on alike if they begin
    alike.
    """
    global _are_processes_compared
    if not arrays or _are_processes_compared:
        return
    from jax.experimental import multihost_utils

    mine = np.concatenate(arrays)
    everybody = multihost_utils.process_allgather(mine)
    if not np.all(everybody == mine):
        raise PortError(
            "the processes of this program would draw different random numbers",
            where="torch's random state",
            fix="call torch.manual_seed with the same seed in every process",
        )
    _are_processes_compared = True
