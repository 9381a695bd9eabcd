"""Reordering by one stable sort against a loop of boolean reads, on the host and traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuport import compat
from tpuport.errors import PortError
from tpuport.patches.reordering import valid_first

WIDTH = 3


def read_by_masks(states, masks, zeroed):
    """What research code does: sample by sample, the valid tokens of each stream, then the others."""
    rows, flags = [], []
    for row in range(len(states[0])):
        valid = [state[row][mask[row]] for state, mask in zip(states, masks, strict=True)]
        others = [state[row][~mask[row]] for state, mask in zip(states, masks, strict=True)]
        others = [x * 0 if zero else x for x, zero in zip(others, zeroed, strict=True)]
        rows.append(torch.cat([*valid, *others]))
        flags.append(torch.cat([torch.ones(len(x)) for x in valid] + [torch.zeros(len(x)) for x in others]))
    return torch.stack(rows), torch.stack(flags).bool()


def streams(masks, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*mask.shape, WIDTH, generator=generator) for mask in masks]


@st.composite
def cases(draw):
    batch = draw(st.integers(1, 3))
    kinds = st.sampled_from(["all", "none", "some"])

    def row(length):
        kind = draw(kinds)
        return [draw(st.booleans()) if kind == "some" else kind == "all" for _ in range(length)]

    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    masks = [torch.tensor([row(n) for _ in range(batch)]).reshape(batch, n).bool() for n in lengths]
    return masks, [draw(st.booleans()) for _ in masks]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(cases())
def test_equals_reads_by_masks(case):
    masks, zeroed = case
    states = streams(masks)
    tokens, valid = valid_first(states, masks, zeroed)
    expected, flags = read_by_masks(states, masks, zeroed)
    assert torch.equal(tokens, expected)
    assert torch.equal(valid, flags)


def test_one_program_for_every_mask():
    lengths, batch, traces = (4, 3, 5), 2, []

    @jax.jit
    def run(states, masks):
        traces.append(None)
        states, masks = compat.as_torch((states, masks))
        return compat.as_jax(valid_first(states, masks, [False, True, True]))

    generator = torch.Generator().manual_seed(1)
    with compat.environment():
        for share in (0.0, 0.3, 0.7, 1.0):
            masks = [torch.rand(batch, n, generator=generator) < share for n in lengths]
            states = streams(masks)
            got = run(*([jnp.asarray(x.numpy()) for x in group] for group in (states, masks)))
            expected = read_by_masks(states, masks, [False, True, True])
            for ours, theirs in zip(got, expected, strict=True):
                np.testing.assert_array_equal(np.asarray(ours), theirs.numpy())
    assert len(traces) == 1


def test_what_padding_held_is_gone():
    masks = [torch.tensor([[1, 0, 1]]), torch.tensor([[0, 1]])]
    states = streams(masks)
    states[0][0, 1] = float("nan")
    states[1][0, 0] = float("inf")
    tokens, valid = valid_first(states, masks)
    assert torch.equal(tokens[:, 3:], torch.zeros(1, 2, WIDTH))
    assert valid.tolist() == [[True, True, True, False, False]]


def test_integer_and_float_masks():
    mask = torch.tensor([[0, 2, 1], [1, 0, 0]])
    states = streams([mask])
    expected, _ = valid_first(states, [mask != 0])
    for dtype in (torch.int64, torch.float32):
        assert torch.equal(valid_first(states, [mask.to(dtype)])[0], expected)


@pytest.mark.parametrize(
    ("states", "masks"),
    [
        ([], []),
        ([(1, 2, 3)], []),
        ([(1, 2, 3)], [(1, 3)]),
        ([(1, 2, 3), (2, 2, 3)], [(1, 2), (2, 2)]),
        ([(1, 2, 3), (1, 2, 4)], [(1, 2), (1, 2)]),
        ([(2, 3)], [(2,)]),
    ],
)
def test_shapes_that_do_not_fit(states, masks):
    with pytest.raises(PortError, match=r"streams and masks"):
        valid_first([torch.zeros(x) for x in states], [torch.ones(x) for x in masks])
