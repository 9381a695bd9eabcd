"""Masks as models write them in torch: the structure that is found, and that it means what the array means."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from tpuport import compat
from tpuport.attention.mask import Mask
from tpuport.attention.provenance import structure_of

B, H, Q, T = 2, 3, 37, 41
LOW = torch.finfo(torch.float32).min
PARTS = ("left", "right", "keys_BT", "queries_BQ", "key_segments_BT", "bias_BT", "dense")


def meaning(array, sizes):
    """(what is visible, what is added to it) of a mask as torch reads it, [B, H, Q, T] each."""
    if array is None:
        return np.ones(sizes, bool), np.zeros(sizes, np.float32)
    array = np.broadcast_to(np.asarray(array), sizes)
    if array.dtype == bool:
        return array, np.zeros(sizes, np.float32)
    visible = array > jnp.finfo(array.dtype).min
    return visible, np.where(visible, array, 0).astype(np.float32)


def assert_same(array, mask, sizes):
    dense = mask.to_dense(*sizes[2:])
    for expected, got in zip(meaning(array, sizes), meaning(dense, sizes), strict=True):
        np.testing.assert_array_equal(got, expected)


def given(mask: Mask) -> set[str]:
    return {part for part in PARTS if getattr(mask, part) is not None}


def found(build, *arguments, sizes=(B, H, Q, T)):
    """The structure of the mask that torch code builds of traced arguments, checked against its values."""
    batch, heads, queries, keys = sizes
    seen = {}

    def run(*traced):
        array = compat.as_jax(build(*(compat.wrap(x) for x in traced)))
        mask = structure_of(array, batch=batch, heads=heads, queries=queries, keys=keys)
        seen["mask"] = mask
        seen["names"] = given(mask)
        seen["band"] = (mask.left, mask.right, mask.offset)
        return array, mask.to_dense(queries, keys)

    with compat.environment():
        array, dense = jax.jit(run)(*(jnp.asarray(x) for x in arguments))
    assert_same(array, Mask(dense=None) if dense is None else _Given(dense), sizes)
    return seen["names"], seen["band"]


class _Given:
    def __init__(self, dense):
        self.dense = dense

    def to_dense(self, queries, keys):
        return self.dense


def tokens(size=T, seed=0, dtype=np.int32):
    return (np.random.RandomState(seed).rand(B, size) < 0.6).astype(dtype)


def ids(size=T, seed=0):
    return np.sort(np.random.RandomState(seed).randint(-2, 4, (B, size)), 1).astype(np.int32)


def places(m, size):
    return torch.arange(size, device=m.device)


KEYS = {
    "view": lambda m: m.bool().view(B, 1, 1, T),
    "expand": lambda m: m.bool()[:, None, None, :].expand(-1, H, Q, -1),
    "repeat": lambda m: m.bool().view(B, 1, 1, T).repeat(1, H, Q, 1),
    "after expand": lambda m: ~(m[:, None, None].expand(-1, -1, Q, -1) == 0),
    "repeated over heads": lambda m: m.bool()[:, None].repeat_interleave(H, dim=0).view(B, H, 1, T),
    "padded": lambda m: functional.pad(m[:, 4:].bool(), (4, 0), value=True)[:, None, None],
    "concatenated": lambda m: torch.cat([m[:, 5:].bool(), m.new_ones(B, 5, dtype=torch.bool)], 1)[:, None, None],
    "lengths": lambda m: (places(m, T)[None] < m.sum(1, keepdim=True))[:, None, None],
    "filled": lambda m: torch.ones(B, T, dtype=torch.bool, device=m.device)
        .masked_fill(places(m, T)[None] >= m.sum(1)[:, None], False)[:, None, None],
    "where": lambda m: torch.where(m.bool(), 0.0, -torch.inf)[:, None, None],
    "where lowest": lambda m: torch.where(m.bool(), 0.0, LOW)[:, None, None].expand(B, 1, Q, T),
    "filled with -inf": lambda m: torch.zeros(B, 1, Q, T, device=m.device)
        .masked_fill(~m.bool()[:, None, None], -torch.inf),
    "times lowest": lambda m: ((1.0 - m.bool()[:, None, None].float()) * LOW),
    "times lowest in bf16": lambda m: ((1.0 - m.bool()[:, None, None].bfloat16()) * torch.finfo(torch.bfloat16).min),
    "every second": lambda m: torch.cat([m, m], 1).bool()[:, places(m, T) * 2][:, None, None].expand(B, 1, Q, T),
    "split": lambda m: torch.cat([m, m.flip(1)], 1).split(T, 1)[1].bool()[:, None, None].expand(B, 1, Q, T),
    "tiled by indices": lambda m: m.bool()[:, None].repeat(1, Q, 1)[:, places(m, H * Q) % Q].view(B, H, Q, T),
    "a part of its rows": lambda m: m.bool()[:, None, None].expand(B, 1, Q + 5, T)[:, :, 5:],
    "rows joined": lambda m: torch.cat([m.bool()[:, None, None].expand(B, 1, 5, T)] * 2, 3)[:, :, :1, T:],
    "some and none": lambda m: torch.cat([ones(m, B, 1, Q, 30), ~ones(m, B, 1, Q, T - 30)], -1),
    "counted": lambda m: ones(m, B, 1, Q, T).int().cumsum(-1) < 30,
    "over all of a batch": lambda m: m.bool()[0],
    "either of two": lambda m: (m.bool() | m.flip(1).bool())[:, None, None].expand(B, 1, Q, T),
    "one row": lambda m: m[:1].bool()[:, None, None],
    "chosen": lambda m: m.bool()[:, places(m, T).flip(0)][:, None, None],
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_of_keys(name):
    assert found(KEYS[name], tokens())[0] == {"keys_BT"}


BIAS = {
    "times -10000": lambda m: ((1 - m.bool().float()) * -10000.0)[:, None, None],
    "per head": lambda m: ((1 - m.bool().float()) * -10000.0).unsqueeze(1)
        .repeat_interleave(H, dim=0).view(B, H, -1, T),
    "per head, of a size given": lambda m: ((1 - m.bool().float()) * -10000.0).unsqueeze(1)
        .repeat_interleave(H, dim=0, output_size=B * H).view(B, H, -1, T),
    "for each query": lambda m: ((1 - m.bool().float()) * -10000.0)[:, None, None].expand(B, H, Q, T),
    "bf16": lambda m: ((1 - m.bool().bfloat16()) * -10000.0)[:, None, None],
}  # fmt: skip


@pytest.mark.parametrize("name", BIAS)
def test_of_numbers_known_not_to_hide(name):
    assert found(BIAS[name], tokens())[0] == {"bias_BT"}


def test_of_numbers_that_may_hide():
    numbers = np.random.RandomState(0).randn(B, T).astype(np.float32)
    numbers[:, ::3], numbers[:, 1::5] = -np.inf, LOW
    assert found(lambda x: x[:, None, None].expand(B, 1, Q, T), numbers)[0] == {"bias_BT", "keys_BT"}
    half = np.maximum(numbers, -100).astype(np.float16)
    half[:, 1::5] = np.finfo(np.float16).min
    assert found(lambda x: x[:, None, None], half)[0] == {"bias_BT", "keys_BT"}


def test_a_bias_as_large_as_the_lowest_number_may_unhide():
    def build(m, x):
        return torch.where(m.bool(), 0.0, LOW)[:, None, None, :] + x[:, None, :, None]

    numbers = np.array([[0.0, 1e30, 1e32, 3e38]] * B, np.float32)
    assert found(build, tokens(), numbers, sizes=(B, H, 4, T))[0] == {"dense"}

    def band(x):
        return torch.full((T, T), LOW, device=x.device).triu(1) + x[:, None, None]

    numbers = np.linspace(-3e38, 3e38, B * T, dtype=np.float32).reshape(B, T)
    assert found(band, numbers, sizes=(B, H, T, T))[0] == {"dense"}


def test_unknown_integers_times_a_number_are_a_bias_that_may_hide():
    assert found(lambda m: ((1 - m.float()) * -10000.0)[:, None, None], tokens())[0] == {"bias_BT", "keys_BT"}


def square(m):
    first = m.bool().view(B, 1, 1, T).repeat(1, 1, T, 1)
    return (first & first.transpose(2, 3)).bool()


PAIRS = {
    "hunyuan": square,
    "unsqueezed": lambda m: (m.bool()[:, None, :] & m.bool()[:, :, None]).unsqueeze(1).expand(B, H, T, T),
    "product": lambda m: (m.bool().float()[:, None, :] * m.bool().float()[:, :, None] > 0.5)[:, None],
    "matrix product": lambda m: (m.bool().float()[:, :, None] @ m.bool().float()[:, None, :] > 0)[:, None],
    "sum": lambda m: (m.bool().int()[:, None, :] + m.bool().int()[:, :, None] == 2)[:, None],
    "not either": lambda m: ~((m == 0)[:, None, None, :] | (m == 0)[:, None, :, None]),
    "filled": lambda m: torch.zeros(B, 1, T, T, device=m.device).masked_fill(~square(m), -torch.inf),
    "filled twice": lambda m: torch.zeros(B, 1, T, T, device=m.device)
        .masked_fill(~m.bool()[:, None, None], LOW).masked_fill(~m.bool()[:, None, :, None], LOW),
    "added": lambda m: torch.where(m.bool(), 0.0, -torch.inf)[:, None, None]
        + torch.where(m.bool(), 0.0, -torch.inf)[:, None, :, None],
    "multiplied": lambda m: (1 - (square(m)).float()) * LOW,
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_of_keys_and_queries(name):
    assert found(PAIRS[name], tokens(), sizes=(B, H, T, T))[0] == {"keys_BT", "queries_BQ"}


def test_of_queries():
    assert found(lambda m: m.bool()[:, None, :, None], tokens(Q))[0] == {"queries_BQ"}
    assert found(lambda m: m.bool()[:, None, :, None].expand(B, H, Q, T), tokens(Q))[0] == {"queries_BQ"}
    assert found(lambda m: torch.where(m.bool(), 0.0, LOW)[:, None, :, None], tokens(Q))[0] == {"queries_BQ"}
    numbers = np.random.RandomState(0).randn(B, Q).astype(np.float32)
    assert found(lambda x: x[:, None, :, None], numbers)[0] == {"dense"}


def ones(m, *sizes):
    return torch.ones(*sizes, dtype=torch.bool, device=m.device)


BANDS = {
    "tril": (lambda m: ones(m, Q, T).tril(), (None, 0, 0)),
    "tril to the end": (lambda m: ones(m, Q, T).tril(T - Q), (None, 0, T - Q)),
    "tril below": (lambda m: ones(m, Q, T).tril(-2), (None, 0, -2)),
    "triu": (lambda m: ones(m, Q, T).triu(-3), (3, None, 0)),
    "triu above": (lambda m: ones(m, Q, T).triu(2), (0, None, 2)),
    "-inf above": (lambda m: torch.full((Q, T), -torch.inf, device=m.device).triu(1), (None, 0, 0)),
    "lowest above": (lambda m: torch.triu(torch.full((1, 1, Q, T), LOW, device=m.device), diagonal=1), (None, 0, 0)),
    "not triu": (lambda m: ~ones(m, Q, T).triu(1), (None, 0, 0)),
    "float tril == 0": (lambda m: torch.zeros(Q, T, device=m.device)
        .masked_fill(torch.tril(torch.ones(Q, T, device=m.device)) == 0, -torch.inf), (None, 0, 0)),
    "compared": (lambda m: places(m, T)[None] <= places(m, Q)[:, None], (None, 0, 0)),
    "less": (lambda m: places(m, T)[None] < places(m, Q)[:, None] + 1, (None, 0, 0)),
    "window": (lambda m: (places(m, Q)[:, None] - places(m, T)[None]).abs() <= 5, (5, 5, 0)),
    "window less": (lambda m: (places(m, T)[None] - places(m, Q)[:, None]).abs() < 5, (4, 4, 0)),
    "outside no window": (lambda m: ~((places(m, T)[None] - places(m, Q)[:, None]).abs() > 5), (5, 5, 0)),
    "sliding": (lambda m: (places(m, T)[None] <= places(m, Q)[:, None])
        & (places(m, T)[None] > places(m, Q)[:, None] - 6),
        (5, 0, 0)),
    "reversed": (lambda m: ones(m, Q, T).tril(T - Q).flip(0).flip(1).transpose(0, 1).T, (0, None, 0)),
    "twice as far apart": (lambda m: 2 * places(m, T)[None] - 2 * places(m, Q)[:, None] <= 3, (None, 0, 1)),
    "diagonal": (lambda m: places(m, T)[None] == places(m, Q)[:, None], (0, 0, 0)),
    "inside another": (lambda m: ones(m, T, T).tril()[T - Q:], (None, 0, T - Q)),
    "everything": (lambda m: ones(m, Q, T), (None, None, 0)),
    "everything near": (lambda m: ones(m, Q, T).tril(T), (None, None, 0)),
    "zeros": (lambda m: torch.zeros(B, H, Q, T, device=m.device), (None, None, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", BANDS)
def test_of_places(name):
    build, band = BANDS[name]
    names, got = found(build, tokens())
    assert "dense" not in names
    assert not names & {"keys_BT", "queries_BQ"}
    assert got == band


def test_long_bands_are_never_built():
    names, band = {}, {}

    def run(m):
        array = compat.as_jax(ones(compat.wrap(m), 200_000, 200_000).tril())
        mask = structure_of(array, batch=B, heads=H, queries=200_000, keys=200_000)
        names["all"], band["all"] = given(mask), (mask.left, mask.right, mask.offset)
        return m

    with compat.environment():
        jax.jit(run)(tokens())
    assert names["all"] == {"right"}
    assert band["all"] == (None, 0, 0)


def test_numbers_that_overflow():
    """Of known values the structure may be found all the same, by looking at them."""
    found(
        lambda m: (places(m, T).to(torch.int8) * 4)[None] <= (places(m, Q).to(torch.int8) * 4)[:, None],
        tokens(),
    )
    found(
        lambda m: (places(m, T).to(torch.int8) + 100)[None] <= (places(m, Q).to(torch.int8) + 100)[:, None],
        tokens(),
    )


def test_padding_and_places():
    def build(m):
        return (ones(m, T, T).tril()[None, None] & m.bool()[:, None, None, :]).expand(B, H, T, T)

    assert found(build, tokens(), sizes=(B, H, T, T)) == ({"keys_BT", "right"}, (None, 0, 0))

    def added(m):
        return (
            torch.full((T, T), LOW, device=m.device).triu(1) + (1.0 - m.bool()[:, None, None].float()) * LOW
        )

    assert found(added, tokens(), sizes=(B, H, T, T)) == ({"keys_BT", "right"}, (None, 0, 0))

    def bias(m, x):
        return torch.full((T, T), -torch.inf, device=m.device).triu(1) + x[:, None, None]

    numbers = np.random.RandomState(0).randn(B, T).astype(np.float32)
    assert found(bias, tokens(), numbers, sizes=(B, H, T, T))[0] == {"keys_BT", "bias_BT", "right"}


def test_places_from_a_traced_start():
    def build(m, start):
        at = places(m, Q) + start
        return ((places(m, T)[None] <= at[:, None]) & (places(m, T)[None] > at[:, None] - 7))[None, None]

    names, (left, right, _) = found(build, tokens(), np.int32(3))
    assert (names, left, right) == ({"left", "right"}, 6, 0)


def test_packed_sequences():
    assert found(lambda x: (x[:, :, None] == x[:, None])[:, None], ids(), sizes=(B, H, T, T))[0] == {
        "key_segments_BT"
    }
    one = found(lambda x: ~(x[0][None] != x[0][:, None]) & ones(x, T, T).tril(), ids(), sizes=(B, H, T, T))
    assert one == ({"key_segments_BT", "right"}, (None, 0, 0))
    names, _ = found(
        lambda x, y: (x[:, :, None] == y[:, None]).unsqueeze(1), ids(Q, 1), ids(), sizes=(B, H, Q, T)
    )
    assert names == {"key_segments_BT"}
    chunks = found(lambda m: places(m, Q)[:, None] // 8 == places(m, T)[None] // 8, tokens())
    assert chunks[0] == {"key_segments_BT"}


def test_numbers_of_packed_sequences_start_at_0():
    far = np.array([[-(2**31), -1, -1, 2**31 - 1, 5]], np.int32)
    for numbers in (far, far[:, 1:], np.array([[-7, -7, -1, 0, 3]], np.int32)):

        @jax.jit
        def run(x):
            size = x.shape[1]
            mask = structure_of(
                (x[:, :, None] == x[:, None])[:, None], batch=1, heads=1, queries=size, keys=size
            )
            return mask.query_segments_BQ, mask.key_segments_BT

        query, key = run(jnp.asarray(numbers))
        assert query.min() == 0
        np.testing.assert_array_equal(
            query[0][:, None] == key[0][None], numbers[0][:, None] == numbers[0][None]
        )


TRAPS = {
    "transposed square": lambda m: m.bool()[:, None, None].expand(B, 1, T, T).transpose(2, 3) | m.bool()[:, None, None],
    "either": lambda m: m.bool()[:, None, None] | m.bool()[:, None, :, None],
    "not both": lambda m: ~square(m),
    "sum": lambda m: (m.bool().int()[:, None, None] + m.bool().int()[:, None, :, None]) >= 1,
    "same": lambda m: m.bool()[:, None, None] ^ m.bool()[:, None, :, None],
    "integers whose product may be positive": lambda m: (m[:, None, None] * m[:, None, :, None]) > 0,
    "bits": lambda m: (m[:, None, None] & m[:, None, :, None]).bool(),
    "one column for all": lambda m: torch.cat([ones(m, B, 1, T, 1), square(m)[..., 1:]], -1),
    "some rows": lambda m: torch.cat([square(m)[:, :, :9], ~ones(m, B, 1, T - 9, T)], 2) | m.bool()[:, None, :, None],
    "overflow": lambda m: (places(m, T).to(torch.int8) * 3 + 100)[None]
        <= (places(m, T).to(torch.int8) * 3)[:, None] + 100 * m[:1, :1].to(torch.int8),
    "known overflow": lambda m: ((places(m, T).to(torch.int8) * 4)[None] <= (places(m, T).to(torch.int8) * 4)[:, None])
        ^ (m.bool()[:1, :, None] & m.bool()[:1, None]),
    "not causal": lambda m: ones(m, T, T).tril() | m.bool()[:, None, None],
    "different distances": lambda m: 2 * places(m, T)[None] <= places(m, T)[:, None] + m.sum(),
    "start of each row": lambda m: places(m, T)[None, None] <= (places(m, T)[None] + m.sum(1)[:, None])[:, :, None],
    "different": lambda m: m[:, None, None] != m[:, None, :, None],
    "compared with data": lambda m: (m.cumsum(1)[:, None, None] <= m.cumsum(1)[:, None, :, None]),
    "numbers for each pair": lambda m: m.float()[:, None, None] * m.float()[:, None, :, None],
    "rolled": lambda m: (places(m, T)[None] - places(m, T)[:, None]) % T <= m.sum(),
    "two numbers of a pair": lambda m: (m[:, None, None] == m[:, None, :, None])
        & (m.flip(1)[:, None, None] == m[:, None, :, None]),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAPS)
def test_not_understood_stays_dense(name):
    build = TRAPS[name]
    shaped = lambda m: build(m) if build(m).dim() != 3 else build(m)[:, None]  # noqa: E731
    assert found(shaped, tokens(seed=3) * 3 - 1, sizes=(B, H, T, T))[0] == {"dense"}


def test_heads_of_their_own_stay_dense():
    array = np.random.RandomState(0).rand(H, Q, T) < 0.5
    assert found(lambda m: m, array)[0] == {"dense"}
    assert found(lambda m: m[:, :1], array)[0] == {"dense"}
    assert found(lambda m: m[:, None, :1].expand(1, H, Q, T) if m.dim() == 2 else m[:1, :1], array)[0] == {
        "keys_BT"
    }


def test_reads_the_axes_as_torch_does():
    """[B, T] is [Q, T]: with as many queries as the batch has rows nothing may be read as padding."""
    assert found(lambda m: m.bool(), tokens(), sizes=(B, H, B, T))[0] == {"dense"}
    assert found(lambda m: m.bool()[0], tokens(), sizes=(B, H, B, T))[0] == {"keys_BT"}
