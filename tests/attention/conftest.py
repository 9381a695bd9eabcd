"""Random attention problems with any mask, and what torch makes of them in float64."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tpuport.attention.mask import Mask


@dataclasses.dataclass
class Problem:
    """Inputs as numpy arrays, rounded to `dtype`, and the parts of a `Mask`."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    dtype: Any = jnp.float32
    scale: float = 0.3
    softcap: float | None = None
    parts: dict[str, Any] = dataclasses.field(default_factory=dict)

    def arrays(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        return tuple(jnp.asarray(x, self.dtype) for x in (self.q, self.k, self.v))

    def mask(self) -> Mask:
        return Mask(**{n: jnp.asarray(x) if isinstance(x, np.ndarray) else x for n, x in self.parts.items()})

    def visible(self) -> np.ndarray:
        """[B, H, Q, T], every pair decided by itself."""
        batch, heads, queries, _ = self.q.shape
        shape = batch, heads, queries, self.k.shape[2]
        _, _, i, j = np.indices(shape, sparse=True)
        position, parts = i + self.parts.get("offset", 0), self.parts
        seen = np.ones(shape, bool)
        if parts.get("right") is not None:
            seen &= j - position <= parts["right"]
        if parts.get("left") is not None:
            seen &= position - j <= parts["left"]
        if "keys_BT" in parts:
            seen &= parts["keys_BT"][:, None, None, :]
        if "queries_BQ" in parts:
            seen &= parts["queries_BQ"][:, None, :, None]
        if "query_segments_BQ" in parts:
            same = parts["query_segments_BQ"][:, :, None] == parts["key_segments_BT"][:, None, :]
            seen &= same[:, None]
        dense = parts.get("dense")
        if dense is not None:
            seen &= dense if dense.dtype == bool else dense > -np.inf
        return seen

    def torch(self) -> dict[str, torch.Tensor]:
        """Float64 results `out` and `lse` and the leaves `q`, `k`, `v`, `bias`, `dense` that they can be derived by."""
        leaf = lambda x: torch.tensor(x, dtype=torch.float64, requires_grad=True)  # noqa: E731
        q, k, v = leaf(self.q), leaf(self.k), leaf(self.v)
        groups = q.shape[1] // k.shape[1]
        scores = self.scale * q @ k.repeat_interleave(groups, 1).mT
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        leaves = {"q": q, "k": k, "v": v}
        visible = torch.from_numpy(self.visible())
        if "bias_BT" in self.parts:
            leaves["bias"] = leaf(self.parts["bias_BT"])
            scores = scores + leaves["bias"][:, None, None, :]
        dense = self.parts.get("dense")
        if dense is not None and dense.dtype != bool:
            leaves["dense"] = leaf(dense)
            scores = scores + torch.where(visible, leaves["dense"], 0.0)
        some = visible.any(-1, keepdim=True)
        # Torch's softmax of a row of -inf is NaN; ours is defined as zeros.
        scores = torch.where(some, torch.where(visible, scores, -torch.inf), 0.0)
        out = (torch.softmax(scores, -1) * some) @ v.repeat_interleave(groups, 1)
        lse = torch.where(some[..., 0], torch.logsumexp(scores, -1), -torch.inf)
        return {"out": out, "lse": lse, **leaves}


def make(
    seed: int,
    *,
    shape: tuple[int, int, int, int, int] = (2, 2, 2, 13, 11),
    dims: tuple[int, int] = (8, 5),
    band: tuple[int | None, int | None, int] = (None, None, 0),
    parts: frozenset[str] | set[str] = frozenset(),
    dtype: Any = jnp.float32,
    softcap: float | None = None,
) -> Problem:
    """`shape` is batch, key/value heads, query heads of each, queries, keys; `band` is left, right, offset."""
    rng = np.random.default_rng(seed)
    batch, kv_heads, groups, queries, keys = shape
    draw = lambda *shape: np.asarray(jnp.asarray(rng.normal(size=shape), dtype), np.float32)  # noqa: E731
    q, k = draw(batch, kv_heads * groups, queries, dims[0]), draw(batch, kv_heads, keys, dims[0])
    rows = lambda: rng.choice([1, batch])  # noqa: E731
    mask: dict[str, Any] = dict(zip(("left", "right", "offset"), band, strict=True))
    if "keys" in parts:
        mask["keys_BT"] = rng.random((rows(), keys)) < 0.7
    if "queries" in parts:
        mask["queries_BQ"] = rng.random((rows(), queries)) < 0.8
    if "segments" in parts:
        mask["query_segments_BQ"] = np.sort(rng.integers(0, 3, (rows(), queries)).astype(np.int32), 1)
        mask["key_segments_BT"] = np.sort(rng.integers(0, 3, (rows(), keys)).astype(np.int32), 1)
    if "bias" in parts:
        mask["bias_BT"] = rng.normal(size=(rows(), keys)).astype(np.float32)
    if "dense" in parts:
        mask["dense"] = rng.random((rows(), rng.choice([1, kv_heads * groups]), queries, keys)) < 0.7
    if "added" in parts:
        dense = rng.normal(size=(rows(), rng.choice([1, kv_heads * groups]), queries, keys))
        hidden = rng.choice([np.finfo(np.float32).min, -np.inf], dense.shape)
        mask["dense"] = np.where(rng.random(dense.shape) < 0.2, hidden, dense).astype(np.float32)
        # A query whose keys all have the lowest number sees them all alike.
        mask["dense"][:, :, 0] = np.finfo(np.float32).min
    return Problem(q, k, draw(batch, kv_heads, keys, dims[1]), dtype, 0.3, softcap, mask)


@pytest.fixture(scope="session")
def problem() -> Callable[..., Problem]:
    return make
