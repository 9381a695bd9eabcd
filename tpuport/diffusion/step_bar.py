"""A progress bar whose seconds per step are the device's: it waits for the step's
result before it reads the clock.
"""

import contextlib
import functools
import logging
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from tpuport import compat

_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{timing}]"
_COMPILATION_EVENTS = frozenset(
    {
        "/jax/core/compile/backend_compile_duration",
        "/jax/compilation_cache/cache_retrieval_time_sec",
    }
)
# The root logger and those of the libraries that a pipeline runs.
_LOGGER_NAMES = (None, "tpuport", "diffusers", "transformers", "accelerate")


class _CompilationCounter:
    """Counts the programs that this process has compiled, or loaded from the cache on
    disk.
    """

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, event: str, duration_secs: float, **_: Any) -> None:
        self.count += event in _COMPILATION_EVENTS


@functools.cache
def _compilation_counter() -> _CompilationCounter:
    # A single counter for all bars, because a listener cannot be unregistered.
    return _CompilationCounter()


class StepBar(tqdm):
    """tqdm for denoising steps: shows steps, seconds of the last step, their average,
    and the time left.

    A step during which something was compiled counts neither for the average nor for
    the time left; until the first step is done the bar says "compiling". Only the first
    of several processes shows a bar. Within `with`, log lines go above the bar.

    Args:
        args, kwargs: as tqdm takes them, `disable` and other options of a pipeline's
            progress bar included.

    Attributes:
        seconds: of each step that is done.
        average: seconds per step, without steps that compiled; None as long as there is
            none.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seconds: list[float] = []
        self._warm_seconds: list[float] = []
        self._watched: Any = None
        self._stack = contextlib.ExitStack()
        self._compilations = _compilation_counter().count
        self._step_start = time.perf_counter()
        kwargs.setdefault("bar_format", _FORMAT)
        # tqdm's own choice would leave steps unshown.
        kwargs.setdefault("miniters", 1)
        kwargs["disable"] = kwargs.get("disable", False) or jax.process_index() != 0
        super().__init__(*args, **kwargs)

    def __enter__(self) -> "StepBar":
        if not self.disable:
            self._stack.enter_context(
                logging_redirect_tqdm(_terminal_loggers(), tqdm_class=tqdm)
            )
        self._step_start = time.perf_counter()
        return super().__enter__()

    def close(self) -> None:
        """Leave the bar on the screen, and restore logging."""
        super().close()
        # tqdm calls this from its destructor too, even if its constructor failed.
        if hasattr(self, "_stack"):
            self._stack.close()

    def watch(self, array: Any) -> None:
        """The step's result, an array or a tensor on the device: `update` waits for
        it.
        """
        self._watched = array

    def __iter__(self) -> Iterator[Any]:
        # tqdm's own iterator does not call `update` for every step.
        with contextlib.closing(self):
            for item in self.iterable:
                yield item
                self.update()

    def update(self, n: int | float | None = 1) -> bool | None:
        """Count `n` more steps, once the watched array is there; a bar that is not
        shown does not wait.
        """
        # Let go of, because the next step may donate it.
        watched, self._watched = self._watched, None
        if self.disable:
            return super().update(n)
        jax.block_until_ready(compat.as_jax(watched))
        if n:
            self._measure(int(n))
        return super().update(n)

    def _measure(self, steps: int) -> None:
        now, compilations = time.perf_counter(), _compilation_counter().count
        seconds = [(now - self._step_start) / max(steps, 1)] * steps
        self.seconds += seconds
        if compilations == self._compilations:
            self._warm_seconds += seconds
        self._step_start, self._compilations = now, compilations

    @property
    def average(self) -> float | None:
        return statistics.fmean(self._warm_seconds) if self._warm_seconds else None

    @property
    def timing(self) -> str:
        """What the bar says about time."""
        if not self.seconds:
            return "compiling"
        last = f"{_format_seconds(self.seconds[-1])} s/step"
        if self.average is None:
            return f"{last} with compiling"
        seconds_left = max((self.total or self.n) - self.n, 0) * self.average
        average = f"average {_format_seconds(self.average)} s"
        return f"{last}, {average}, left {self.format_interval(seconds_left)}"

    @property
    def format_dict(self) -> dict[str, Any]:
        return {**super().format_dict, "timing": self.timing}


def _terminal_loggers() -> list[logging.Logger]:
    """Loggers that write to the terminal, where the bar is."""
    loggers = []
    for logger in map(logging.getLogger, _LOGGER_NAMES):
        streams = [getattr(handler, "stream", None) for handler in logger.handlers]
        if not {sys.stdout, sys.stderr}.isdisjoint(streams):
            loggers.append(logger)
    return loggers


def _format_seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.3f}"
    if seconds < 10:
        return f"{seconds:.2f}"
    return f"{seconds:.1f}"
