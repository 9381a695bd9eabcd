"""TPU303: statements of `torch.cuda` that only manage the GPU."""

import libcst as cst

from tpuport.lint.fixes.place import Place
from tpuport.lint.fixes.rewrite import Edit, Rewrite
from tpuport.lint.fixes.statements import remove_line
from tpuport.lint.fixes.tpu304_cuda_autocast import rewrite as autocast

# They change no tensor, and give nothing that is used.
_MANAGING = frozenset(
    "empty_cache synchronize ipc_collect reset_peak_memory_stats reset_max_memory_allocated "
    "reset_accumulated_memory_stats set_per_process_memory_fraction nvtx.range_push nvtx.range_pop nvtx.mark".split()
)


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """`torch.cuda.empty_cache()` and the like, on a line of their own; `torch.cuda.amp.autocast` as TPU304 does."""
    call = place.parent(node) if isinstance(node, cst.Attribute) else node
    if not isinstance(call, cst.Call) or (call is not node and call.func is not node):
        return None
    name = place.dotted(call.func).removeprefix("torch.cuda.")
    if name == "amp.autocast":
        return autocast(call, place)
    if name not in _MANAGING or not place.is_statement(call):
        return None
    edit = remove_line(place, call)
    return edit and Edit(edit.changes, unsafe=place.on_host)


REWRITE = Rewrite("TPU303", (cst.Call, cst.Attribute), rewrite)
