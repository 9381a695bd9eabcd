"""TPU305: imports of packages that need a GPU."""

import ast
from typing import Final

from tpuport.lint.events import (
    Call,
    Import,
    Refusal,
)
from tpuport.lint.findings import Severity
from tpuport.lint.gpu_packages import IMPORTABLE_PACKAGES, is_gpu_package, needs_gpu
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule

_REMEDY: Final = (
    "call it only if the import succeeded, and `F.scaled_dot_product_attention` otherwise, "
    "for which tpuport uses the TPU's kernel"
)


def check(event: Import | Call | Refusal, context: Context) -> Answer:
    """An import without an alternative, at module level or in a function; a traced
    call, or a test, without one.
    """
    match event:
        case Refusal(missing=True):
            return Hit(
                "the package needs a GPU and cannot be imported, so this raises",
                _REMEDY,
            )
        case Refusal():
            return False
        case Call():
            return event.receiver is None and needs_gpu(event.name) and _call_hit(event)
        case Import():
            return (
                is_gpu_package(event.name)
                and not (event.guarded or event.own)
                and _import_hit(event)
            )


def _call_hit(event: Call) -> Hit:
    package = event.name.partition(".")[0]
    if event.certain:
        return Hit(
            f"{package} needs a GPU, and this call in traced code is unconditional",
            _REMEDY,
        )
    # The condition may well be false: an option, or one of several versions.
    return Hit(
        f"{package} needs a GPU, and traced code may call it here",
        _REMEDY,
        severity=Severity.WARNING,
    )


def _import_hit(event: Import) -> Answer:
    # A file of the project may have a package's name.
    if isinstance(event.node, ast.ImportFrom) and event.node.level > 0:
        return False
    package = event.name.partition(".")[0]
    if package in IMPORTABLE_PACKAGES:
        reason = f"{package} can be imported without a GPU where it is installed, but its kernels need one"
        return Hit(reason, severity=Severity.WARNING)
    reason = f"{package} needs a GPU to be installed or imported"
    if event.at_import:
        return Hit(reason)
    # A function that imports it may never be called.
    return Hit(reason, severity=Severity.WARNING)


RULE = Rule(
    id="TPU305",
    name="gpu-import",
    severity=Severity.ERROR,
    summary="an unguarded import of a package that needs a GPU: flash_attn, mamba_ssm, apex, ...",
    why="These packages are built for CUDA. On a TPU machine they cannot be installed, or raise when they "
    "are imported, and so does every file that imports them without a guard. An import inside `try: ... "
    "except ImportError`, or under `if is_xformers_available():`, is not reported. xformers, triton, deepspeed and "
    "liger_kernel can be imported without a GPU where they are installed, so their import is a warning; a call of "
    "their kernels is not. `with tpuport.gpu_shim():` lets code be imported as it is that takes attention and norms "
    "from flash_attn, xformers, sageattention or apex, and computes them with tpuport's.",
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
    events=(Import, Call, Refusal),
    calls=needs_gpu,
    check=check,
)
