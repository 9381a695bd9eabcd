"""The decision about one weight."""

import dataclasses
from typing import Any

from jax.sharding import PartitionSpec


@dataclasses.dataclass(frozen=True)
class WeightPlan:
    """What was decided for a weight, and why.

    Attributes:
        names: of the weight; several if it is tied.
        shape: of the whole weight.
        spec: the part on each device; empty if every device has all of it.
        heads: how many units the divided dimension has that no device may cut through;
            None if any part will do.
        reason: in a sentence.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    spec: PartitionSpec
    heads: int | None
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """The decision in plain lists, strings and numbers."""
        # json knows no PartitionSpec, and a tuple would not compare equal to the list
        # that is read back.
        lists = {
            "names": list(self.names),
            "shape": list(self.shape),
            "spec": list(self.spec),
        }
        return vars(self) | lists
