"""TPU303: statements of `torch.cuda` that only manage the GPU."""

from typing import Final

import libcst as cst

from tpuport.lint.fixes.edits import Edit, Rewrite, mark_unsafe, remove_line
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import expect

# They change no tensor, and nobody uses their result.
_MANAGING_FUNCTIONS: Final = frozenset(
    "empty_cache synchronize ipc_collect reset_peak_memory_stats reset_max_memory_allocated "
    "reset_accumulated_memory_stats set_per_process_memory_fraction nvtx.range_push nvtx.range_pop nvtx.mark".split()
)


def rewrite(node: cst.Call | cst.Attribute, site: Site) -> Edit | None:
    """`torch.cuda.empty_cache()` and the like, on a line of their own."""
    # The finding may be on the name or on its call.
    call = site.innermost(node, cst.Call)
    expect(node in (call, call.func))
    name = site.function_name(call).removeprefix("torch.cuda.")
    expect(name in _MANAGING_FUNCTIONS)
    expect(site.is_statement(call))
    return mark_unsafe(remove_line(site, call), site.is_host_code)


REWRITE = Rewrite("TPU303", (cst.Call, cst.Attribute), rewrite)
