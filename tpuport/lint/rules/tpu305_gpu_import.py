"""TPU305: imports of packages that need a GPU."""

import ast
from typing import Final

from tpuport.lint.events import (
    Import,
    Use,
)
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule

_PACKAGES: Final = frozenset(
    "flash_attn flash_attn_interface flash_attn_2_cuda flash_attn_3 xformers sageattention sageattn triton apex"
    " bitsandbytes transformer_engine causal_conv1d mamba_ssm selective_scan_cuda cupy pycuda tensorrt nvdiffrast"
    " block_sparse_attn spas_sage_attn deepspeed flashinfer liger_kernel vllm fused_dense_lib spconv MinkowskiEngine"
    " torch_tensorrt fla natten quack cutlass cuda".split()
)


def check(event: Import | Use, context: Context) -> Answer:
    """An import without an alternative, at module level or in a function; a traced call without one."""
    package = event.name.partition(".")[0]
    if package not in _PACKAGES or event.guarded:
        return False
    if isinstance(event, Use):
        return _check_call(event, package)
    # A file of the project may have a package's name.
    if isinstance(event.node, ast.ImportFrom) and event.node.level > 0:
        return False
    reason = f"{package} needs a GPU to be installed or imported"
    if event.at_import:
        return Hit(reason)
    # A function that imports it may never be called.
    return Hit(reason, severity=Severity.WARNING)


def _check_call(event: Use, package: str) -> Answer:
    """A guarded import helps only if the call is guarded too; an early return may do that, so it is a warning."""
    if event.call is None or not event.traced or event.decorator:
        return False
    return Hit(
        f"{package} needs a GPU, and this call in traced code is unconditional",
        "call it only if the import succeeded, and `F.scaled_dot_product_attention` otherwise",
        severity=Severity.WARNING,
    )


RULE = Rule(
    id="TPU305",
    name="gpu-import",
    severity=Severity.ERROR,
    summary="an unguarded import of a package that needs a GPU: flash_attn, xformers, triton, apex, ...",
    why="These packages are built for CUDA. On a TPU machine they cannot be installed, or raise when they "
    "are imported, and so does every file that imports them without a guard. An import inside `try: ... "
    "except ImportError`, or under `if is_xformers_available():`, is not reported.",
    reason="this package needs a GPU to be installed or imported",
    remedy="guard the import with `try: ... except ImportError`, and call `F.scaled_dot_product_attention`, "
    "for which tpuport uses the TPU's kernel",
    bad=Example("""
from flash_attn import flash_attn_func


class Model(nn.Module):
    def forward(self, q, k, v):
        return flash_attn_func(q, k, v)
"""),
    good=Example(
        """
try:
    from flash_attn import flash_attn_func
except ImportError:
    flash_attn_func = None


class Model(nn.Module):
    def forward(self, q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
""",
        "tuple(torch.randn(1, 6, 2, 8) for _ in range(3))",
    ),
    quiet=(
        # Imported only if the package is installed.
        Example("""
import importlib.util

if importlib.util.find_spec("xformers"):
    import xformers.ops


class Model(nn.Module):
    def forward(self, x):
        return x * 2
"""),
    ),
    harm="import",
    events=(Import, Use),
    check=check,
)
