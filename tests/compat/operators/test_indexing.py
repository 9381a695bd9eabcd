import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuport import PortError, compat

# torch itself warns about a list of lists; it still takes it for a tuple.
pytestmark = pytest.mark.filterwarnings("ignore:Using a non-tuple sequence for multidimensional indexing")

X = torch.arange(120.0).reshape(2, 3, 4, 5)
MASK = X > 30
EVERY = slice(None)


def t(*values):
    return torch.tensor(values)


KEYS = {
    "integer": 0,
    "negative": -1,
    "slice": slice(0, 1),
    "element": (1, -1, 0, 2),
    "integer and slice": (0, slice(1, 3)),
    "ellipsis": (..., 0),
    "None": (None, 0, None),
    "step": (EVERY, slice(None, None, 2)),
    "list": [0, 1],
    "lists": ([0, 1], [1, 2]),
    "nested list": [[0, 1], [1, 2]],
    "empty list": [],
    "list of bools": [True, False],
    "range": range(2),
    "numpy": np.array([0, 1]),
    "True": True,
    "False": False,
    "tensor": t(1, 0),
    "two tensors": (t(0, 1), t(1, 2)),
    "integer apart from tensor": (0, EVERY, t(1, 2)),
    "tensors apart": (t(0, 1), EVERY, t(1, 2)),
    "tensor apart from integer": (t(0, 1), EVERY, 0),
    "tensor of two dimensions": (EVERY, torch.tensor([[0, 1], [2, 0]])),
    "negative tensor": (EVERY, t(-1, -2)),
    "ellipsis and tensor": (..., t(0, 1)),
    "None and tensor": (None, t(0, 1)),
    "tensors around None": (t(0, 1), None, t(0, 1)),
    "slice and tensors": (slice(1), t(0, 1), t(0, 1)),
    "scalar tensor": torch.tensor(1),
    "scalar tensor and slice": (EVERY, torch.tensor(1), slice(1, 3)),
    "scalar tensor apart from tensor": (torch.tensor(0), EVERY, t(1, 2)),
}
MASKS = {
    "whole mask": MASK,
    "leading mask": MASK[:, :, 0, 0],
    "mask after slice": (EVERY, MASK[0, :, 0, 0] | True),
    "mask after integer": (0, EVERY, MASK[1, 0, :, 0]),
    "mask before integer": (MASK[:, :, 0, 0], 0),
    "mask before slice": (MASK[:, :, 0, 0], slice(1, 2)),
    "mask after ellipsis": (..., MASK[0, 0, 0] | True),
    "mask after None": (None, MASK),
    "scalar mask": torch.tensor(True),
    "scalar mask, false": torch.tensor(False),
}


def mapped(key, function):
    """The key with a function applied to its tensors."""
    if isinstance(key, torch.Tensor):
        return function(key)
    return tuple(mapped(item, function) for item in key) if isinstance(key, tuple) else key


def indexed(array, key, view):
    """The tensor, or a view of a longer one that shows the same."""
    tensor = compat.wrap(jnp.concatenate([array, array]))[len(array) :] if view else compat.wrap(array)
    return tensor[key]


@pytest.mark.parametrize(
    ("where", "view"),
    [
        pytest.param("host", False, id="host-tensor"),
        pytest.param("host", True, id="host-view", marks=pytest.mark.slow),
        pytest.param("ported", False, id="ported-tensor", marks=pytest.mark.slow),
        pytest.param("ported", True, id="ported-view"),
    ],
)
@pytest.mark.parametrize("name", [*KEYS, *MASKS])
def test_reading(name, where, view):
    key = {**KEYS, **MASKS}[name]
    reference = X[key]
    if where == "ported":
        key = mapped(key, lambda tensor: compat.wrap(compat.to_jax(tensor)))
    with compat.environment():
        mine = indexed(compat.to_jax(X), key, view)
    torch.testing.assert_close(compat.to_torch(compat.as_jax(mine)), reference, rtol=0, atol=0)


@pytest.mark.parametrize("name", KEYS)
def test_reading_under_jit(name):
    key = KEYS[name]
    leaves = []
    mapped(key, lambda tensor: leaves.append(compat.to_jax(tensor)))

    @jax.jit
    def read(array, leaves):
        rest = iter(leaves)
        with compat.environment():
            return compat.as_jax(indexed(array, mapped(key, lambda _: compat.wrap(next(rest))), view=True))

    torch.testing.assert_close(compat.to_torch(read(compat.to_jax(X), leaves)), X[key], rtol=0, atol=0)


def values(shape):
    """Whatever torch lets one write into this shape."""
    yield 7.5
    yield torch.randn(shape)
    yield torch.randn(1)
    yield torch.randn(shape[-1:])
    yield torch.randn((1, *shape))
    yield torch.tensor(3)


# One of each form of a key; the others differ in how they are read, and all of them are written to a tensor.
IN_A_VIEW = (
    "integer",
    "slice",
    "None",
    "list",
    "two tensors",
    "tensors apart",
    "leading mask",
    "scalar mask",
)


@pytest.mark.parametrize(
    ("name", "view"),
    [
        pytest.param(
            name, view, id=f"{name}-{'view' if view else 'tensor'}",
            marks=[pytest.mark.slow] if view and name not in IN_A_VIEW else [],
        )
        for view in (False, True)
        for name in [*KEYS, *MASKS]
    ],
)  # fmt: skip
def test_writing_under_jit(name, view):
    key = {**KEYS, **MASKS}[name]
    leaves = []
    mapped(key, lambda tensor: leaves.append(compat.to_jax(tensor)))

    @jax.jit
    def write(array, values, leaves):
        return [_written(array, value, key, iter(leaves), view) for value in values]

    array = torch.cat([X, X]) if view else X
    taken, references = [], []
    for value in values(X[key].shape):
        reference = array.clone()
        try:
            (reference[len(X) :] if view else reference)[key] = value
        except (RuntimeError, IndexError):
            continue  # torch refuses this value for this key
        taken.append(compat.to_jax(value) if isinstance(value, torch.Tensor) else value)
        references.append(reference)
    assert len(taken) >= 2
    mine = [compat.to_torch(one) for one in write(compat.to_jax(array), taken, leaves)]
    torch.testing.assert_close(mine, references, rtol=0, atol=0)


def _written(array, value, key, leaves, view):
    """Traced: an array after value was written at a key whose tensors are leaves."""
    with compat.environment():
        tensor = compat.wrap(array)
        target = tensor[len(X) :] if view else tensor
        target[mapped(key, lambda _: compat.wrap(next(leaves)))] = compat.as_torch(value)
    return compat.as_jax(tensor)


def test_value_is_cast_to_the_tensor(agree):
    def write(x, value):
        x[0] = value
        x[:, 1] = 1.7
        x[x > 3] = value[0]
        return x

    agree(write, torch.arange(12, dtype=torch.int32).reshape(3, 4), torch.randn(4) * 5)
    agree(write, torch.randn(3, 4).bfloat16(), torch.randn(4))


def test_views_of_views_write_through(agree):
    def write(x, index):
        inner = x[1:][:, 2:]
        inner[0] += 5
        inner[:, index] = -1
        inner[inner > 60] = 0
        inner[0, 1].copy_(x[0, 0])
        return x, inner

    agree(write, X[0].clone(), t(1, 0))


def test_copy_casts_and_broadcasts(agree):
    def copy(x, y):
        x[1:3].copy_(y)
        x[:, 0].copy_(y[0])
        whole = torch.zeros_like(x, dtype=torch.int32)
        whole.copy_(y)
        return x, whole

    agree(copy, torch.zeros(4, 3).bfloat16(), torch.randn(3) * 9)


def test_copy_crosses_between_host_and_device():
    host = torch.zeros(2, 3)
    with compat.environment():
        ported = compat.wrap(jnp.ones((2, 3)))
        assert host.copy_(ported) is host
        ported.copy_(torch.full((3,), 4.0))
    assert host.tolist() == [[1.0] * 3] * 2
    assert compat.as_jax(ported).tolist() == [[4.0] * 3] * 2


def test_state_of_a_recurrent_layer_is_updated_in_place(agree):
    def update(states, new):
        states[1].copy_(new)
        rolled = states[0].roll(-1, -1)
        rolled[:, -1] = new[:, 0]
        states[0] = rolled
        return states

    agree(update, torch.randn(2, 3, 4), torch.randn(3, 4))


@pytest.mark.parametrize("key", [5, -3, (0, 3), (0, 0, 0, 0, 0)])
def test_out_of_range_is_an_error_as_in_torch(key):
    with pytest.raises(IndexError):
        X[key]
    with compat.environment():
        ported = compat.wrap(compat.to_jax(X))
        with pytest.raises(IndexError):
            ported[key]
        with pytest.raises(IndexError):
            ported[key] = 0


def test_a_number_of_more_than_32_bits_is_an_error_with_the_reason():
    x = compat.wrap(compat.to_jax(torch.arange(4)))
    with compat.environment():
        with pytest.raises(RuntimeError, match="integers have 32 bits on the device"):
            x[0] = 1 << 40
        with pytest.raises(PortError, match="integers have 32 bits there"):
            x + (1 << 40)
        assert x.tolist() == [0, 1, 2, 3]


def test_backward_slice_is_an_error_as_in_torch():
    with compat.environment(), pytest.raises(ValueError, match="step"):
        compat.wrap(compat.to_jax(X))[::-1]


@settings(settings.get_profile("few"), deadline=None)
@given(data=st.data())
def test_any_mixture_reads_and_writes_like_torch(data):
    entry = st.one_of(
        st.integers(-2, 1),
        st.builds(
            slice,
            st.integers(-3, 3) | st.none(),
            st.integers(-3, 3) | st.none(),
            st.sampled_from([None, 1, 2]),
        ),
        st.none(),
        st.lists(st.integers(-2, 1), min_size=2, max_size=2).map(torch.tensor),
        st.integers(0, 1).map(torch.tensor),
    )
    key = tuple(data.draw(st.lists(entry, max_size=5)))
    x = torch.arange(36.0).reshape(2, 3, 2, 3)
    if sum(item is not None for item in key) > x.ndim:
        return
    reference = x[key]
    with compat.environment():
        ported = compat.wrap(compat.to_jax(x))
        read = compat.to_torch(compat.as_jax(ported[key]))
        ported[key] = compat.wrap(compat.to_jax(-reference - 1))
    torch.testing.assert_close(read, reference, rtol=0, atol=0)
    x[key] = -reference - 1
    # Where one element is written twice, which write wins is not defined.
    if len(reference.unique()) == reference.numel():
        torch.testing.assert_close(compat.to_torch(compat.as_jax(ported)), x, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_numbers_beyond_small_integers_have_their_last_bits(agree, dtype):
    def casts(x):
        copied, written = (torch.zeros(9, dtype=dtype, device=x.device) for _ in range(2))
        written[1:] = x[1:]
        return [x.to(dtype), x.bfloat16().to(dtype), copied.copy_(x), written]

    agree(casts, torch.tensor([300.7, -1.0, -300.0, 255.9, 1e5, -1e5, 3e9, -torch.inf, torch.nan]))
