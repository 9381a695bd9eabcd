"""XLM and FlauBERT: lengths that the model counts itself, without a look at their
values.

transformers asserts that no row has more tokens than columns, which is so for every row
whose tokens it has counted.
"""

from collections.abc import Callable
from typing import Any

import torch

from tpuport.patches.switch import with_original


class _CountedLengths:
    """Lengths [B] of rows of a number of columns, in place of a tensor: the model reads
    no more of them than this.
    """

    def __init__(self, lengths: torch.Tensor, columns: int) -> None:
        self._lengths = lengths
        self._columns = columns
        self.device = lengths.device

    def size(self, dim: int) -> int:
        return self._lengths.size(dim)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._lengths[index]

    def max(self) -> "_Bound":
        return _Bound(self._columns)


class _Bound:
    """What no length exceeds, in place of the largest length, which is compared with it
    alone.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns

    def item(self) -> int:
        return self._columns


@with_original
def forward(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Traced. As `XLMModel.forward`, or `FlaubertModel.forward`; lengths that a caller
    gives are asserted as there.
    """
    names = (
        "input_ids",
        "attention_mask",
        "langs",
        "token_type_ids",
        "position_ids",
        "lengths",
    )
    arguments = dict(zip(names, args, strict=False)) | kwargs
    if len(args) <= len(names) and arguments.get("lengths") is None:
        lengths = _count(
            self, arguments.get("input_ids"), arguments.get("inputs_embeds")
        )
        arguments["lengths"] = lengths
        return original(self, **arguments)
    return original(self, *args, **kwargs)


def _count(model: Any, input_ids: Any, inputs_embeds: Any) -> Any:
    """The lengths of rows as the model counts them; None without any input, which the
    model refuses.
    """
    if input_ids is not None:
        lengths = (input_ids != model.pad_index).sum(dim=1).long()
        return _CountedLengths(lengths, input_ids.shape[1])
    if inputs_embeds is None:
        return None
    rows, columns = inputs_embeds.shape[:2]
    lengths = torch.full(
        (rows,), columns, device=inputs_embeds.device, dtype=torch.long
    )
    return _CountedLengths(lengths, columns)
