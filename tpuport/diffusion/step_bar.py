"""A progress bar whose seconds a step are the device's: it waits for the step's result before it looks at the clock."""

import contextlib
import functools
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import torch
from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from tpuport import compat

_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{timing}]"
_COMPILING = ("/jax/core/compile/backend_compile_duration", "/jax/compilation_cache/cache_retrieval_time_sec")


class _Compilations:
    """Counts the programs that this process has compiled, or taken from the cache on disk."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, duration_secs: float, **_: Any) -> None:
        self.count += event in _COMPILING


@functools.cache
def _compilations() -> _Compilations:
    return _Compilations()


class StepBar(tqdm):
    """tqdm for denoising steps: shows steps, seconds of the last step, their average, and the time left.

    A step in which something was compiled counts neither for the average nor for the time left; until the first step
    is done the bar says "compiling". Only the first of several processes shows a bar. Within `with`, log lines go
    above the bar.

    Args:
        args, kwargs: as tqdm takes them; `disable` and the rest of a pipeline's progress bar options included.

    Attributes:
        seconds: of each step that is done.
        average: seconds a step, without those that compiled; None as long as there is none.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seconds: list[float] = []
        self._warm: list[float] = []
        self._watched: Any = None
        self._stack = contextlib.ExitStack()
        self._compiled = _compilations().count
        self._since = time.perf_counter()
        kwargs.setdefault("bar_format", _FORMAT)
        kwargs.setdefault("miniters", 1)
        kwargs["disable"] = kwargs.get("disable", False) or jax.process_index() != 0
        super().__init__(*args, **kwargs)

    def __enter__(self) -> "StepBar":
        if not self.disable:
            self._stack.enter_context(logging_redirect_tqdm(_loggers(), tqdm_class=tqdm))
        self._since = time.perf_counter()
        return super().__enter__()

    def close(self) -> None:
        """Leave the bar as it is, and logging as it was."""
        super().close()
        stack: contextlib.ExitStack | None = getattr(self, "_stack", None)
        if stack is not None:
            stack.close()

    def watch(self, array: Any) -> None:
        """The step's result, an array or a tensor of the device: `update` waits for it."""
        self._watched = array

    def __iter__(self) -> Iterator[Any]:
        # tqdm's own looks at the clock now and then only.
        with contextlib.closing(self):
            for item in self.iterable:
                yield item
                self.update()

    def update(self, n: int | float | None = 1) -> bool | None:
        """So many more steps are done, once what is watched is there; a bar that is not shown waits for nothing."""
        watched, self._watched = self._watched, None
        if self.disable:
            return super().update(n)
        if watched is not None:
            jax.block_until_ready(compat.as_jax(watched) if isinstance(watched, torch.Tensor) else watched)
        if n:
            self._measure(int(n))
        return super().update(n)

    def _measure(self, steps: int) -> None:
        now, compiled = time.perf_counter(), _compilations().count
        each = (now - self._since) / max(steps, 1)
        self.seconds += [each] * steps
        if compiled == self._compiled:
            self._warm += [each] * steps
        self._since, self._compiled = now, compiled

    @property
    def average(self) -> float | None:
        return sum(self._warm) / len(self._warm) if self._warm else None

    @property
    def timing(self) -> str:
        """What the bar says about time."""
        if not self.seconds:
            return "compiling"
        last = f"{_short(self.seconds[-1])} s/step"
        if self.average is None:
            return f"{last} with compiling"
        left = max((self.total or self.n) - self.n, 0) * self.average
        return f"{last}, average {_short(self.average)} s, left {self.format_interval(left)}"

    @property
    def format_dict(self) -> dict[str, Any]:
        return {**super().format_dict, "timing": self.timing if hasattr(self, "seconds") else ""}


def _loggers() -> list[logging.Logger]:
    """Those that write to the terminal, where the bar is."""
    names = (None, "tpuport", "diffusers", "transformers", "accelerate")
    return [
        logger
        for logger in map(logging.getLogger, names)
        if any(getattr(handler, "stream", None) in (sys.stdout, sys.stderr) for handler in logger.handlers)
    ]


def _short(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 1 else f"{seconds:.2f}" if seconds < 10 else f"{seconds:.1f}"
