"""A sequence joined from parts, divided over devices part by part:
[v0 t0 | v1 t1 | ...] of a video v and a text t.

Attention without a band depends on no order, neither of the queries nor of the keys. So
each device takes its share of every part, and what is divided already, or is whole on
every device, stays where it is.

Shapes: B batch, H heads, S tokens of the whole sequence, s tokens of one device, D
features.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped


@dataclasses.dataclass(frozen=True)
class SharedParts:
    """Parts of a sequence, of which each of several devices has a share.

    Attributes:
        lengths: of the parts.
        devices: how many there are.
    """

    lengths: tuple[int, ...]
    devices: int

    @classmethod
    def of(cls, parts: Sequence[jax.Array], devices: int) -> "SharedParts":
        """Of arrays [B, H, length, D]. A single one is whole: it may be divided in
        other ways.
        """
        lengths = tuple(part.shape[2] for part in parts)
        return cls(lengths, devices if len(lengths) > 1 else 1)

    @property
    def is_joined(self) -> bool:
        """Whether there are several parts."""
        return len(self.lengths) > 1

    @property
    def shares(self) -> tuple[int, ...]:
        """The length of a device's share of each part."""
        return tuple(math.ceil(length / self.devices) for length in self.lengths)

    @property
    def size(self) -> int:
        """The length of all shares of all devices."""
        return self.devices * sum(self.shares)

    @property
    def is_even(self) -> bool:
        """Whether no share is padded."""
        return self.size == sum(self.lengths)

    def pad(self, parts: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        """Traced. The parts [B, H, length, D], each as long as its shares together."""
        padded = []
        for part, share in zip(parts, self.shares, strict=True):
            missing = share * self.devices - part.shape[2]
            # Padding by nothing would be a copy where arrays are not traced.
            padded.append(
                jnp.pad(part, ((0, 0), (0, 0), (0, missing), (0, 0)))
                if missing
                else part
            )
        return tuple(padded)

    def arrange(self, array_BS: Shaped[Array, "B S"]) -> Shaped[Array, "B size"]:
        """Traced. What is known of each token, such as a mask, in the order of the
        devices; of padding, zeros.
        """
        rows = array_BS.shape[0]
        starts = itertools.accumulate(self.lengths, initial=0)
        pieces = []
        for start, length, share in zip(
            starts, self.lengths, self.shares, strict=False
        ):
            piece = array_BS[:, start : start + length]
            piece = jnp.pad(piece, ((0, 0), (0, share * self.devices - length)))
            pieces.append(piece.reshape(rows, self.devices, share))
        return jnp.concatenate(pieces, axis=2).reshape(rows, self.size)

    def split(self, array_BHsD: Shaped[Array, "B H s D"]) -> tuple[jax.Array, ...]:
        """Traced. One device's tokens as its shares of the parts."""
        if not self.is_joined:
            return (array_BHsD,)
        ends = list(itertools.accumulate(self.shares))[:-1]
        return tuple(jnp.split(array_BHsD, ends, axis=2))
