"""How each tensor-parallel style of transformers and diffusers divides a weight over
the mesh.

A style of these libraries says which dimension of a weight is cut, and which
collectives run around the module. Under GSPMD the compiler derives the collectives from
the weights' layout, so only the dimension matters here, and styles that differ only in
their collectives (gathered outputs, replicated inputs) map to the same cut.

Linear weights are `[out, in]`, expert weights `[E, out, in]` or, transposed,
`[E, in, out]`: both libraries count the cut dimension from the end, and so does this
table.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

from jax.sharding import PartitionSpec

from tpuport.errors import PortError

AXIS = "tp"


class Cut(Enum):
    """Which dimension of a weight a style divides."""

    COLUMNS = "output features: dimension -2 of a matrix; a bias is divided too"
    ROWS = "input features: the last dimension of a matrix; a bias stays replicated"
    FIRST = "dimension 0: whole experts, or rows of the vocabulary"
    NOTHING = "replicated"
    EXPERTS = "a module of experts: its own weights are divided by whole experts"
    MODULE = "concerns a module's collectives and not its weights"


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
    # An embedding is always cut over its rows: cutting its width would leave the
    # residual stream cut, and every norm would then cost an all-reduce and an
    # all-gather.
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
    # diffusers' packed styles are objects, recognised by their class.
    "PackedColwiseParallel": Cut.COLUMNS,
    "PackedRowwiseParallel": Cut.ROWS,
}


def style_cut(style: Any, key: str) -> Cut:
    """The cut of a style, a name or an object of a class of that name; PortError, with
    the key, if it is unknown.
    """
    name = style if isinstance(style, str) else type(style).__name__
    if name not in STYLES:
        raise PortError(
            f"the model's tensor-parallel plan uses the style {name!r}, which tpuport does not know",
            where=f"plan entry {key!r}",
            fix="pass your own rules=ShardingRules({...}), and report the style",
        )
    return STYLES[name]


def plan_regex(key: str) -> str:
    """The regex for a plan's key: `*` matches one number, everything else matches
    itself.
    """
    return re.escape(key).replace(r"\*", r"\d+")


def weight_spec(
    cut: Cut,
    shape: tuple[int, ...],
    *,
    transposed: bool = False,
    convolution: bool = False,
) -> PartitionSpec:
    """The spec of one weight under a cut, over the axis `tp`.

    Args:
        shape: the weight's shape; one dimension means a bias, or a vector with one
            entry for each head.
        transposed: the matrix is `[in, out]`, as GPT-2's `Conv1D` keeps it.
        convolution: the weight is `[out, in, *kernel]`.
    """
    rank = len(shape)
    if rank == 0:
        return PartitionSpec()
    # The dimensions of output and input features.
    columns, rows, experts = rank - 2, rank - 1, 0
    if rank == 1:
        # A vector in a module of experts belongs to all of them.
        columns, rows, experts = 0, None, None
    elif convolution:
        columns, rows = 0, 1
    elif transposed:
        columns, rows = rows, columns
    dimensions = {
        Cut.COLUMNS: columns,
        Cut.ROWS: rows,
        Cut.FIRST: 0,
        Cut.EXPERTS: experts,
    }
    dimension = dimensions.get(cut)
    if dimension is None:
        return PartitionSpec()
    entries: list[str | None] = [None] * rank
    entries[dimension] = AXIS
    return PartitionSpec(*entries)
