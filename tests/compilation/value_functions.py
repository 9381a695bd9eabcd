"""Functions whose results have shapes that values decide: code that the linter reads to explain an error."""

import torch


def tokens_decide(x: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    return x[: int(input_ids.max())]


def types_decide(x: torch.Tensor, input_ids: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
    return x[types == 1] + input_ids[0, 0]


def sizes_and_sums_decide(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    rows = x[: int(sizes[0])]
    return rows if rows.sum() > 0 else -rows
