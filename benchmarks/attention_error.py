"""How far masked attention is from float64, by the way that padded keys are masked.

    python benchmarks/attention_error.py                                    the table of docs/attention.md
    python benchmarks/attention_error.py --plot docs/img/attention-error.svg   and its plot

The kernel itself runs, in interpret mode. The reference is the formula in float64 torch, on the inputs as rounded to
the kernel's dtype. An error is the largest difference, over the largest magnitude of the reference.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.attention.flash import flash
from tpuport.attention.mask import Mask

QUERIES, KEYS, DIM = 256, 512, 64
BLOCKS = (256, 512, 256)
SCALE = DIM**-0.5
SEEDS = range(5)


class Case(NamedTuple):
    """Inputs in float64: query [1, 2, Q, D], key and value [1, 2, T, D], and which keys are real [1, T]."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    real: np.ndarray


def drawn(seed: int, valid: int) -> Case:
    """Unit variance everywhere; the first `valid` keys are real."""
    rng = np.random.default_rng(seed)
    shapes = [(1, 2, n, DIM) for n in (QUERIES, KEYS, KEYS)]
    return Case(*(rng.normal(size=shape) for shape in shapes), np.arange(KEYS)[None] < valid)


def _far_below(seed: int) -> Case:
    case = drawn(seed, 300)
    return case._replace(query=np.abs(case.query) * 10 + 10, key=-np.abs(case.key) - 5)


def _scattered(seed: int) -> Case:
    return drawn(seed, 300)._replace(real=np.random.default_rng(seed).random((1, KEYS)) < 0.3)


def _huge(seed: int) -> Case:
    case = drawn(seed, 300)
    return case._replace(query=case.query * 100, key=case.key * 100)


def _opposed(seed: int) -> Case:
    """Two kinds of keys far apart: their mean scores far below the better kind."""
    case = drawn(seed, 300)
    sign = np.where(np.arange(KEYS) % 2, 30.0, -30.0)[:, None]
    return case._replace(key=case.key + sign)


CASES: dict[str, Callable[[int], Case]] = {
    "random, 300 of 512 keys real": lambda seed: drawn(seed, 300),
    "random, real keys scattered": _scattered,
    "all real scores far below zero": _far_below,
    "one real key": lambda seed: drawn(seed, 1),
    "keys in two opposed groups": _opposed,
    "scores in the thousands": _huge,
    "no real key": lambda seed: drawn(seed, 0),
}


def _arrays(case: Case, dtype: type) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    return *(jnp.asarray(x, dtype) for x in case[:3]), jnp.asarray(case.real)


def float64(case: Case, dtype: type) -> np.ndarray:
    """[1, 2, Q, D]; zeros where no key is real."""
    q, k, v = (torch.from_numpy(np.asarray(x, np.float64)) for x in _arrays(case, dtype)[:3])
    if not case.real.any():
        return np.zeros(q.shape)
    hidden = torch.from_numpy(~case.real)[:, None, None, :]
    return (torch.softmax((q @ k.mT * SCALE).masked_fill(hidden, -torch.inf), -1) @ v).numpy()


def by_mode(mode: str) -> Callable[..., jax.Array]:
    """Attention with padded keys masked in this way."""

    @jax.jit
    def run(query: jax.Array, key: jax.Array, value: jax.Array, real: jax.Array) -> jax.Array:
        mask = Mask(keys_BT=real)
        return flash(query, key, value, mask, scale=SCALE, padding=mode, blocks=BLOCKS, interpret=True)[0]

    return run


@jax.jit
def mean_key(query: jax.Array, key: jax.Array, value: jax.Array, real: jax.Array) -> jax.Array:
    """The mean of the real keys in place of each padded one, and its share divided out afterwards."""
    weight = real[:, None, :, None].astype(jnp.float32)
    count = jnp.maximum(weight.sum(2, keepdims=True), 1)
    mean = ((key.astype(jnp.float32) * weight).sum(2, keepdims=True) / count).astype(key.dtype)
    key, value = jnp.where(weight > 0, key, mean), jnp.where(weight > 0, value, 0)
    out, lse = flash(query, key, value, Mask(), scale=SCALE, blocks=BLOCKS, interpret=True)
    score = (query.astype(jnp.float32) * mean.astype(jnp.float32)).sum(-1) * SCALE
    kept = 1 - (KEYS - real.sum()) * jnp.exp(score - lse)
    return jnp.where(real.any(), out / kept[..., None], 0)


MODES = {
    "exact": by_mode("exact"),
    "segment ids": by_mode("segment_ids"),
    "mean key, share divided out": mean_key,
    "zeroed keys and values": by_mode("zero"),
}


def error(mode: str, case: Case, dtype: type) -> float:
    """The largest difference over the reference's largest magnitude (over 1 where that is 0)."""
    expected = float64(case, dtype)
    difference = np.abs(np.asarray(MODES[mode](*_arrays(case, dtype)), np.float64) - expected).max()
    return float(difference / (np.abs(expected).max() or 1.0))


def rows() -> Iterator[list[str]]:
    """A case and a dtype, then the worst error over the seeds for each mode."""
    for name, make in CASES.items():
        for dtype in (jnp.float32, jnp.bfloat16):
            cells = [f"{max(error(mode, make(seed), dtype) for seed in SEEDS):.1e}" for mode in MODES]
            yield [name, jnp.dtype(dtype).name, *cells]


def plot(file: Path) -> None:
    """Error against the share of real keys, bfloat16, for the modes that a user can choose."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "tpuport", "font.size": 11}
    from matplotlib import pyplot as plt

    valid = [1, 8, 26, 51, 102, 154, 205, 256, 307, 358, 410, 461, 486, 504, 511]
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for mode, style in (("zeroed keys and values", "o-"), ("segment ids", "s--"), ("exact", "x-")):
        errors = [max(error(mode, drawn(seed, n), jnp.bfloat16) for seed in SEEDS) for n in valid]
        axes.plot([n / KEYS for n in valid], errors, style, label=mode, markersize=5)
    axes.set(yscale="log", xlabel="share of keys that are real", ylabel="largest error / largest output")
    axes.grid(alpha=0.3)
    axes.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the plot there, as SVG")
    options = parser.parse_args()
    write = lambda cells: sys.stdout.write("| " + " | ".join(cells) + " |\n")  # noqa: E731
    write(["logits", "dtype", *MODES])
    write(["---", "---", *["---:"] * len(MODES)])
    for row in rows():
        write(row)
        sys.stdout.flush()
    if options.plot:
        plot(options.plot)


if __name__ == "__main__":
    main()
