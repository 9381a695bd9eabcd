import re
import subprocess
import sys
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import tpuport
from tpuport import compat
from tpuport.compat import warnings as filters


def seen(action):
    """The warnings of an action, under the filters that are in force."""
    with warnings.catch_warnings(record=True) as caught:
        action()
    return [str(warning.message) for warning in caught]


def truncate_integers():
    jnp.zeros(3, dtype=jnp.int64)
    jnp.arange(3).astype("int64")
    jnp.asarray(1, dtype=jnp.dtype("int64"))


def truncate_floats():
    jnp.zeros(3, dtype=jnp.float64)


def read_only():
    # torch says it once in a process; the text is what it says.
    warnings.warn(
        filters.HARMLESS[1].text.replace("*", "/torch/csrc/utils/tensor_numpy.cpp:213"), stacklevel=1
    )


@pytest.fixture(autouse=True)
def defaults():
    with warnings.catch_warnings():
        tpuport.disable()
        warnings.resetwarnings()
        warnings.simplefilter("always")
        yield
        tpuport.disable()


@pytest.mark.parametrize(("action", "count"), [(truncate_integers, 3), (read_only, 1)])
def test_harmless_ones_are_filtered_while_enabled_and_only_then(action, count):
    assert len(seen(action)) == count
    tpuport.enable()
    assert seen(action) == []
    tpuport.disable()
    assert len(seen(action)) == count


def test_filtered_even_where_warnings_are_errors():
    warnings.simplefilter("error")
    with pytest.raises(UserWarning, match="int64"):
        truncate_integers()
    tpuport.enable()
    truncate_integers()


@pytest.mark.parametrize(
    "action",
    [
        truncate_floats,
        lambda: warnings.warn("The given NumPy array is not writable, and something else", stacklevel=1),
        lambda: warnings.warn(f"{filters.HARMLESS[1].text} And more.", stacklevel=1),
        lambda: warnings.warn("Explicitly requested dtype int64", stacklevel=1),
        lambda: warnings.warn("anything", DeprecationWarning, stacklevel=1),
    ],
)
def test_everything_else_stays_visible(action):
    tpuport.enable()
    assert len(seen(action)) == 1


def test_a_filter_dropped_by_a_block_comes_back_with_the_environment():
    with warnings.catch_warnings():
        tpuport.enable()
    assert seen(truncate_integers)
    compat.environment()
    assert not seen(truncate_integers)


def test_other_filters_are_left_alone():
    warnings.filterwarnings("error", "mine")
    before = list(warnings.filters)
    tpuport.enable()
    tpuport.enable()
    assert len(warnings.filters) == len(before) + len(filters.HARMLESS)
    tpuport.disable()
    assert warnings.filters == before


@pytest.mark.slow  # of the release of torch alone; the tests above have the text
def test_the_listed_text_is_what_torch_says():
    """In a process of its own, since torch says it once."""
    code = (
        "import warnings, numpy, torch\n"
        "array = numpy.ones(3); array.setflags(write=False)\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always'); torch.from_numpy(array)\n"
        "print(caught[0].message)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.match(filters.HARMLESS[1].pattern, done.stdout.strip())


def test_converting_warns_of_nothing_even_when_disabled():
    def convert():
        compat.to_torch(compat.to_jax(torch.arange(3)))
        compat.to_torch(jnp.ones(3))
        compat.to_jax(torch.from_numpy(np.ones(3)))

    assert seen(convert) == []
