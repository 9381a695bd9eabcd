"""A share of `python -m benchmarks.abuse_generate_load`: interrupts, threads, and many calls."""

import random
import signal

import pytest

from benchmarks.abuse_generate_load import Load, interrupted_calls, many_calls, threads


@pytest.fixture(scope="module")
def load():
    before = signal.getsignal(signal.SIGALRM)
    # Of few buckets: the programs of each are compiled for three models.
    yield Load((3, 5, 9, 11, 17, 30, 40, 63))
    signal.signal(signal.SIGALRM, before)


# tests/compilation/test_interrupts.py has the moments that matter, test_generating.py an interrupted stream.
@pytest.mark.slow
# Python reports, and drops, an interrupt that falls into a finalizer.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_calls_after_interrupts_are_right(load):
    assert interrupted_calls(load, 6, random.Random(1)) == 0


@pytest.mark.slow  # test_generating.py has two threads
def test_threads_get_the_right_answers(load):
    assert threads(load, 2) == 0


@pytest.mark.slow  # test_generating.py frees a model with its programs
def test_many_calls_leave_nothing_behind(load):
    assert many_calls(load, 40, random.Random(2)) == 0
