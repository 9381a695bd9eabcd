"""When attention's scores are worth a kernel."""

from typing import Final

from tpuport.attention.calls import Call

# From here on one head's scores in float32 are 4 MiB: 32 heads of them fill a v5e's VMEM (128 MiB), so that scores
# which no kernel keeps on the chip go through HBM.
LONG: Final = 1024


def is_long(call: Call) -> bool:
    """Whether a call has many queries and many keys."""
    return len(call.query) == 4 and len(call.key) == 4 and min(call.query[2], call.key[2]) >= LONG


def score_bytes(call: Call) -> int:
    """Bytes of all scores of a call, in float32."""
    batch, heads, queries, _ = call.query
    return 4 * batch * heads * queries * call.key[2]
