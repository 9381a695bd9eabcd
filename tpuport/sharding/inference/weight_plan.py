"""The decision about one weight."""

import dataclasses

from jax.sharding import PartitionSpec


@dataclasses.dataclass(frozen=True)
class WeightPlan:
    """What was decided for a weight, and why.

    Attributes:
        names: of the weight; several if it is tied.
        spec: the part on each device; empty if every device has all of it.
        heads: how many units the divided dimension has that no device may cut through; None if any part will do.
        reason: in a sentence.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    spec: PartitionSpec
    heads: int | None
    reason: str
