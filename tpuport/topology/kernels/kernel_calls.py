"""A call of a Pallas kernel as it was traced: what it says that it costs, and what was counted."""

import math
from typing import Any, Final, NamedTuple

RAGGED: Final = (
    "ragged-dot"  # what the compiler for TPUs calls the kernels that it makes of products by groups
)


class KernelCost(NamedTuple):
    """What one call does on one device.

    Attributes:
        flops: two for each multiplication of its products.
        read: bytes of HBM that its blocks bring in of each operand; written: that they take to each result. None for a
            cost that the kernel states, which is of all together.
        copied: bytes of HBM at either end of the copies that it starts by itself.
        nbytes: all bytes.
        source: "kernel" where the kernel states it, "counted" where it was counted from what was traced (FLOPs may be
            stated even so, see `KernelCall.cost`).
        bound: of what was counted and depends on data, "at most", "at least" or, where both, "about"; else None.
    """

    flops: float
    nbytes: float
    source: str
    bound: str | None = None
    read: tuple[float, ...] | None = None
    written: tuple[float, ...] | None = None
    copied: float = 0.0


class KernelCall(NamedTuple):
    """A traced call.

    Attributes:
        name: of the kernel; empty where it has none.
        operands, results: dtype and dimensions of each, ("bfloat16", (8, 128)).
        times: that a step makes this call, on a device.
        stated: "flops" and "bytes_accessed" by the kernel's own estimate; None where it has none.
        counted: over its grid.
    """

    name: str
    operands: tuple[tuple[str, tuple[int, ...]], ...]
    results: tuple[tuple[str, tuple[int, ...]], ...]
    times: float
    stated: tuple[float, float] | None
    counted: KernelCost

    @property
    def cost(self) -> KernelCost:
        """What was counted, where that is exact or the kernel states nothing; what the kernel states elsewhere.

        Of FLOPs that are both stated and counted the fewer: what is stated may be of steps that the kernel skips, and
        what is counted may have products in it that only sum or move. A kernel without products has elementwise FLOPs,
        which are stated only.
        """
        if self.stated is None:
            return self.counted
        flops, nbytes = self.stated
        if self.counted.bound is not None:
            return KernelCost(flops, nbytes, "kernel")
        return self.counted._replace(flops=min(flops, self.counted.flops) if self.counted.flops else flops)


def described(equation: Any, times: float, counted: KernelCost) -> KernelCall:
    """The call that an equation makes."""
    estimate = equation.params.get("cost_estimate")
    return KernelCall(
        str(equation.params.get("name") or ""),
        _types(equation.invars),
        _types(equation.outvars),
        times,
        None if estimate is None else (float(estimate.flops), float(estimate.bytes_accessed)),
        counted,
    )


def by_groups(equation: Any, times: float, flops: float, ways: int) -> KernelCall:
    """A product by groups, which is a kernel on a TPU: named `RAGGED`, with `flops` on a device on average.

    Of its rows it has one in `ways`, as many as there are groups that a device has not: which ones is known at run
    time only.
    """
    bound = "about" if ways > 1 else None
    cost = KernelCost(flops, 0.0, "counted", bound)
    return KernelCall(RAGGED, _types(equation.invars), _types(equation.outvars), times, None, cost)


def _types(variables: Any) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((str(one.aval.dtype), tuple(map(int, one.aval.shape))) for one in variables)


def size(aval: Any) -> int:
    """Bytes of an array without the padding of tiles."""
    return math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 0)
