"""Records of a diffusers scheduler's steps on the host: what went in, what came out,
what was drawn and what was bounded.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from tpuport.diffusion.scheduler_tables import Bound
from tpuport.internals.diffusers_internals import bound_by_threshold

BOUNDED = "the bounded value"
_CLAMPS = (torch.clamp, torch.clip, torch.Tensor.clamp, torch.Tensor.clip)


class BoundedValue(NamedTuple):
    """A value that a scheduler bounds within its step, before and after."""

    bound: Bound
    value: torch.Tensor
    result: torch.Tensor


@dataclasses.dataclass
class StepRecord:
    """A step on the host: tensors by name before and after, what was drawn, and the
    scaled model input.
    """

    sample: torch.Tensor
    model_output: torch.Tensor
    before: dict[str, torch.Tensor]
    after: dict[str, torch.Tensor]
    fields: dict[str, torch.Tensor]
    noise: list[torch.Tensor]
    noise_dtypes: tuple[torch.dtype | None, ...]
    scaled: torch.Tensor
    output_class: type
    bounded: list[BoundedValue]

    def outputs(self, layout: "TableLayout") -> Iterator[tuple[int, torch.Tensor]]:
        """Everything that the step computes, each with its row in a table."""
        outputs = self.fields | self.after
        if self.bounded:
            outputs[BOUNDED] = self.bounded[0].value
        for row, name in enumerate(layout.rows):
            if name in outputs:
                yield row, outputs[name]


class TableLayout(NamedTuple):
    """The names of a table's rows and columns: fields and slots are rows; sample,
    output, noise, slots are columns.
    """

    fields: list[str]
    history: list[str]
    noises: int
    bound: Bound | None

    @property
    def slots(self) -> list[str]:
        """The history, and last the bounded value if there is one."""
        if self.bound is None:
            return self.history
        return [*self.history, BOUNDED]

    @property
    def rows(self) -> list[str]:
        return [*self.fields, *self.slots]

    @property
    def first_slot(self) -> int:
        """The column of the first slot."""
        return 2 + self.noises

    @property
    def columns(self) -> int:
        return self.first_slot + len(self.slots)


class StepMode(TorchFunctionMode):
    """Supplies tensors of ours if a scheduler draws normal noise, and records what it
    bounds.

    Args:
        supply: from the number of the draw to noise.
        shape: of the sample; clamps of other shapes do not matter.
        replace: from a bounded value to what to go on with instead of it.
    """

    def __init__(
        self,
        supply: Callable[[int], torch.Tensor],
        shape: torch.Size,
        replace: Callable[..., torch.Tensor],
    ) -> None:
        super().__init__()
        self._supply, self._shape, self._replace = supply, shape, replace
        self.noise: list[torch.Tensor] = []
        self.dtypes: list[torch.dtype | None] = []
        self.bounded: list[BoundedValue] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _CLAMPS and args[0].shape == self._shape:
            low, high = (*args[1:], kwargs.get("min"), kwargs.get("max"))[:2]
            if not any(isinstance(limit, torch.Tensor) for limit in (low, high)):
                low = -math.inf if low is None else float(low)
                high = math.inf if high is None else float(high)
                return self._record_bound(
                    Bound("clamp", low, high), args[0], func(*args, **kwargs)
                )
        if func is torch.randn:
            return self._supply_noise(kwargs.get("dtype"))
        if func is torch.randn_like:
            return self._supply_noise(kwargs.get("dtype") or args[0].dtype)
        return func(*args, **kwargs)

    def _supply_noise(self, dtype: torch.dtype | None) -> torch.Tensor:
        noise = self._supply(len(self.noise))
        if dtype == noise.dtype:
            dtype = None
        self.noise.append(noise)
        self.dtypes.append(dtype)
        return noise.to(dtype or noise.dtype)

    def _record_bound(
        self, bound: Bound, value: torch.Tensor, result: torch.Tensor
    ) -> torch.Tensor:
        """Record a value that is bounded; returns what the scheduler goes on with."""
        self.bounded.append(BoundedValue(bound, value.clone(), result.clone()))
        return self._replace(result)

    def thresholding(self, scheduler: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        """A replacement for what bounds a scheduler's samples."""
        config = scheduler.config

        def threshold(sample: torch.Tensor) -> torch.Tensor:
            bound = Bound(
                "threshold", config.dynamic_thresholding_ratio, config.sample_max_value
            )
            return self._record_bound(
                bound, sample, bound_by_threshold(scheduler, sample)
            )

        return threshold
