"""How each tensor-parallel style of transformers and diffusers lays a weight out over the mesh.

The libraries' styles say two things: which dimension of a weight is cut, and which collectives run around
the module. Under GSPMD the compiler derives the collectives from the weights' layout, so only the first
remains, and styles that differ only in their collectives (gathered outputs, replicated inputs) map alike.

Linear weights are `[out, in]`, expert weights `[E, out, in]` or, transposed, `[E, in, out]`: both libraries
count the cut dimension from the end, and so does this table.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

from jax.sharding import PartitionSpec

from tpuport.errors import PortError

AXIS = "tp"


class Cut(Enum):
    """Which dimension of a weight a style shares out."""

    COLUMNS = "output features: dimension -2 of a matrix, a vector whole"
    ROWS = "input features: the last dimension of a matrix; a bias stays replicated"
    FIRST = "dimension 0: whole experts, or rows of the vocabulary"
    NOTHING = "replicated"
    EXPERTS = "a module of experts: its own weights are shared out by whole experts"
    MODULE = "says something about a module's collectives and nothing about its weights"


STYLES: dict[str, Cut] = {
    "colwise": Cut.COLUMNS,
    "colwise_rep": Cut.COLUMNS,
    "colwise_gather_output": Cut.COLUMNS,
    "packed_colwise": Cut.COLUMNS,
    "local_colwise": Cut.COLUMNS,
    "local_packed_colwise": Cut.COLUMNS,
    "rowwise": Cut.ROWS,
    "rowwise_rep": Cut.ROWS,
    "rowwise_split_input": Cut.ROWS,
    "packed_rowwise": Cut.ROWS,
    "local_rowwise": Cut.ROWS,
    "local_packed_rowwise": Cut.ROWS,
    # An embedding is always cut over its rows: cutting its width would leave the residual stream cut, and
    # every norm would then pay an all-reduce and an all-gather.
    "embedding_rowwise": Cut.FIRST,
    "embedding_colwise": Cut.FIRST,
    "grouped_gemm": Cut.FIRST,
    "replicate": Cut.NOTHING,
    "replicated_with_grad_allreduce": Cut.NOTHING,
    "sequence_parallel": Cut.NOTHING,
    "mla_kv_a_proj": Cut.NOTHING,
    "moe_tp_experts": Cut.EXPERTS,
    "ep_dispatch_experts": Cut.EXPERTS,
    "ep_router": Cut.MODULE,
    "all_reduce": Cut.MODULE,
    "gather": Cut.MODULE,
    "local": Cut.MODULE,
    "local_params": Cut.MODULE,
    "moe_identity_expert": Cut.MODULE,
    # diffusers' packed styles are objects, known by their class.
    "PackedColwiseParallel": Cut.COLUMNS,
    "PackedRowwiseParallel": Cut.ROWS,
}


def cut_of(style: Any, key: str) -> Cut:
    """The cut that a plan's style stands for.

    Raises:
        PortError: a style that this table does not know, named.
    """
    name = style if isinstance(style, str) else type(style).__name__
    if name not in STYLES:
        raise PortError(
            f"the model's tensor-parallel plan uses the style {name!r}, which tpuport does not know",
            where=f"plan entry {key!r}",
            fix="pass rules=ShardingRules({...}) of your own, and report the style",
        )
    return STYLES[name]


def plan_regex(key: str) -> str:
    """The regex for a plan's key: `*` stands for one number, everything else for itself."""
    return r"\.".join(r"\d+" if part == "*" else re.escape(part) for part in key.split("."))


def spec_of(
    cut: Cut, shape: tuple[int, ...], *, transposed: bool = False, convolution: bool = False
) -> PartitionSpec:
    """The spec of one weight under a cut, over the axis `tp`.

    Args:
        shape: the weight's shape; one dimension means a bias, or a vector with one entry a head.
        transposed: the matrix is `[in, out]`, as GPT-2's `Conv1D` keeps it.
        convolution: the weight is `[out, in, *kernel]`.
    """
    rank = len(shape)
    if rank == 0 or cut in (Cut.NOTHING, Cut.MODULE):
        return PartitionSpec()
    if cut in (Cut.FIRST, Cut.EXPERTS):
        return PartitionSpec() if cut is Cut.EXPERTS and rank < 2 else _at(0, rank)
    if rank == 1:
        return _at(0, 1) if cut is Cut.COLUMNS else PartitionSpec()
    if convolution:
        return _at(0 if cut is Cut.COLUMNS else 1, rank)
    return _at(rank - 2 if (cut is Cut.COLUMNS) != transposed else rank - 1, rank)


def _at(dim: int, rank: int) -> PartitionSpec:
    return PartitionSpec(*(AXIS if index == dim else None for index in range(rank)))
