"""How weights become numbers of a few bits: each scheme by its name, and the rounding
that all of them share.

The arithmetic is a few lines, so no quantisation library is used: qwix and AQT quantise
modules of flax, and torchao's quantisers make tensor subclasses of torch, neither of
which this runtime reads.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tpuport.errors import PortError


class Grouping(NamedTuple):
    """How the inputs of a weight share scales.

    Attributes:
        inputs: that share one.
        segments: equal parts of the inputs, each of which is filled up to whole groups.
    """

    inputs: int
    segments: int = 1


@dataclass(frozen=True)
class Scheme:
    """Symmetric quantisation of a weight [..., O, K]: each group of inputs of an output
    has a scale.

    Attributes:
        name: as users write it, such as "int4:64".
        dtype: of the values.
        limit: the largest magnitude that a scaled weight has before it is rounded.
        group_sizes: how many inputs may share a scale, in the order of preference;
            empty for all of them. Of several, parts of the inputs are filled up to
            whole groups where that costs little.
        rounds_activations: whether products round what the weight is multiplied with to
            int8 too, each row by its largest magnitude.
    """

    name: str
    dtype: np.dtype
    limit: float
    group_sizes: tuple[int, ...] = ()
    rounds_activations: bool = False

    def grouping(self, columns: int, devices: int = 8) -> Grouping:
        """Which of a weight's `columns` inputs share a scale.

        Of several sizes it is the first that gives groups which so many devices can
        divide, or else half of them, and so on. It does not depend on the mesh, so that
        a model has the same numbers on all meshes.

        Args:
            devices: the most that may divide the inputs.
        """
        if not self.group_sizes:
            return Grouping(columns)
        preferred = self.group_sizes[0]
        if len(self.group_sizes) == 1 or columns <= preferred:
            return Grouping(min(preferred, columns))
        while devices:
            for size in self.group_sizes:
                padding = -(columns // devices) % size
                if (
                    columns % devices == 0
                    and padding * devices <= _MOST_PADDING * columns
                ):
                    return Grouping(size, devices if padding else 1)
            devices //= 2
        return Grouping(preferred)

    def quantize(
        self, weights: np.ndarray, scale_dtype: np.dtype
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values and scales of `weights` [..., I], whose last dimension shares a scale.

        Args:
            scale_dtype: the scale is rounded to it first, so that this rounding costs
                no accuracy.

        Returns:
            Values [..., I], and scales [...].

        Raises:
            PortError: a weight is not finite.
        """
        weights = weights.astype(np.float32)
        largest = np.abs(weights).max(axis=-1, initial=0.0)
        if not np.isfinite(largest).all():
            raise PortError("a weight that is not finite cannot be quantised")
        scale = (largest / self.limit).astype(scale_dtype)
        divisor = scale.astype(np.float32)[..., None]
        # A group of zeros, or of numbers that are too small for the scale's dtype.
        quotient = np.divide(
            weights, divisor, out=np.zeros_like(weights), where=divisor != 0
        )
        return self._round(quotient), scale

    def _round(self, quotient: np.ndarray) -> np.ndarray:
        if jnp.issubdtype(self.dtype, jnp.floating):
            # Conversion to these types does not saturate.
            largest = float(jnp.finfo(self.dtype).max)
            return np.clip(quotient, -largest, largest).astype(self.dtype)
        limits = jnp.iinfo(self.dtype)
        return np.clip(np.rint(quotient), limits.min, limits.max).astype(self.dtype)


# Of the inputs of a weight. Groups of a quarter of the size have scales of as many more
# bytes.
_MOST_PADDING = 1 / 12
# 7.5 and not 7: the integers go from -8 to 7, and a step that is a fifteenth smaller is
# worth one clipped weight.
_SCHEMES = {
    "int8": Scheme("int8", jnp.dtype(jnp.int8), 127.0),
    "int4": Scheme("int4", jnp.dtype(jnp.int4), 7.5, group_sizes=(128, 64, 32)),
    "fp8": Scheme("fp8", jnp.dtype(jnp.float8_e4m3fn), 448.0),
    "w8a8": Scheme("w8a8", jnp.dtype(jnp.int8), 127.0, rounds_activations=True),
}


def as_scheme(scheme: Any) -> Scheme:
    """A scheme from its name: "int8", "int4", "fp8", each also with the size of its
    groups, "int4:64"; or "w8a8".

    Raises:
        PortError: there is no such scheme.
    """
    if isinstance(scheme, Scheme):
        return scheme
    match = (
        re.fullmatch(r"(\w+)(?::([1-9]\d*))?", scheme)
        if isinstance(scheme, str)
        else None
    )
    if match is None or match[1] not in _SCHEMES:
        raise PortError(
            f"{scheme!r:.60} is not a quantisation scheme",
            where="quantize",
            fix=f"give one of {', '.join(map(repr, _SCHEMES))}, or with the size of groups 'int4:64'",
        )
    base = _SCHEMES[match[1]]
    if match[2] is None:
        return base
    if base.rounds_activations:
        raise PortError(
            f"{scheme!r} has groups, which a product of integers cannot have: it is summed over all inputs first",
            where="quantize",
            fix=f"give {base.name!r}",
        )
    return Scheme(scheme, base.dtype, base.limit, (int(match[2]),))
