"""The bar for denoising steps: what it shows, when it looks at the clock, and what it leaves alone."""

import io
import logging
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from tpuport import compat
from tpuport.diffusion import pipeline_calls, step_bar
from tpuport.diffusion.step_bar import StepBar


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(step_bar.time, "perf_counter", lambda: self.now)


class Slow:
    """Stands for an array whose computation takes a while."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def block_until_ready(self):
        self.clock.now += self.seconds
        return self


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def visible(file: io.StringIO) -> str:
    return file.getvalue().split("\r")[-1]


def compiled():
    """Compile a program that was never compiled before."""
    jax.jit(lambda x: x + time.time_ns() % 1_000_003)(jnp.ones(3)).block_until_ready()


def test_a_step_is_timed_when_it_is_done(clock):
    file = io.StringIO()
    with StepBar(total=4, file=file, mininterval=0) as bar:
        bar.refresh()
        assert "compiling" in visible(file)
        assert "0/4" in visible(file)
        compiled()
        bar.watch(Slow(clock, 30))
        bar.update()
        assert bar.average is None
        assert "30.0 s/step with compiling" in visible(file)
        for seconds in (2, 4):
            bar.watch(Slow(clock, seconds))
            bar.update()
        assert bar.seconds == [30, 2, 4]
        assert bar.average == 3
        assert "3/4" in visible(file)
        assert "4.00 s/step, average 3.00 s, left 00:03" in visible(file)


def test_it_waits_for_what_the_device_computes():
    @jax.jit
    def work(x):
        return jax.lax.fori_loop(0, 60, lambda _, x: jnp.tanh(x @ x), x)

    x = jnp.eye(300)
    work(x).block_until_ready()
    with StepBar(total=1, file=io.StringIO()) as bar:
        out = work(x)
        bar.watch(compat.wrap(out))
        bar.update()
        assert out.is_ready()
    assert bar.average is not None
    assert bar.seconds[0] > 0


def test_a_warm_run_counts_its_first_step(clock):
    with StepBar(total=2, file=io.StringIO()) as bar:
        bar.watch(Slow(clock, 5))
        bar.update()
    assert bar.average == 5


def test_time_before_the_first_step_is_not_the_first_step_s(clock):
    bar = StepBar(total=1, file=io.StringIO())
    clock.now += 50
    with bar:
        clock.now += 1
        bar.update()
    assert bar.seconds == [1]


def test_several_steps_at_once(clock):
    with StepBar(total=6, file=io.StringIO()) as bar:
        bar.watch(Slow(clock, 6))
        bar.update(3)
        assert bar.seconds == [2, 2, 2]
        assert bar.n == 3


def test_an_iterable(clock):
    file = io.StringIO()
    bar = StepBar(range(3), file=file, mininterval=0)
    for _ in bar:
        bar.watch(Slow(clock, 2))
    assert bar.seconds == [2, 2, 2]
    assert "3/3" in file.getvalue()


def test_a_bar_that_is_not_shown_waits_for_nothing(clock):
    file = io.StringIO()
    with StepBar(total=2, file=file, disable=True) as bar:
        bar.watch(Slow(clock, 2))
        bar.update()
    assert not file.getvalue()
    assert clock.now == 100.0
    assert list(StepBar(range(3), disable=True)) == [0, 1, 2]


def test_only_the_first_process_shows_one(monkeypatch):
    monkeypatch.setattr(step_bar.jax, "process_index", lambda: 1)
    assert StepBar(total=2).disable


def test_log_lines_stay_whole(capsys):
    logger = logging.getLogger("tpuport")
    stream = logging.StreamHandler()  # as a user has it, on standard error
    logger.addHandler(stream)
    try:
        with StepBar(total=2, mininterval=0) as bar:
            bar.update()
            logger.warning("a line of the log")
            bar.update()
            assert stream not in logger.handlers
        assert stream in logger.handlers
        with pytest.raises(KeyboardInterrupt), StepBar(total=2):
            raise KeyboardInterrupt
        assert stream in logger.handlers
    finally:
        logger.removeHandler(stream)
    lines = capsys.readouterr().err.replace("\r", "\n").split("\n")
    assert "a line of the log" in [line.strip() for line in lines]


def test_a_pipeline_passes_options_of_its_bar(clock):
    """Marigold names its loops; what the user has set comes first."""
    file = io.StringIO()
    pipe = SimpleNamespace(
        _tpuport=SimpleNamespace(bar=None), _progress_bar_config={"file": file, "desc": "mine"}
    )
    bar = pipeline_calls._PortedPipeline.progress_bar(pipe, [1, 2], desc="Diffusion steps", leave=False)
    assert (list(bar), bar.leave) == ([1, 2], False)
    assert "mine" in file.getvalue()
    assert "Diffusion steps" not in file.getvalue()
