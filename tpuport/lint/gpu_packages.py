"""Packages that need a GPU, so that importing them fails on a TPU machine, and how code
asks whether they are there.
"""

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Final

# These are imported on any machine where they are installed; only what they launch
# needs a GPU.
IMPORTABLE_PACKAGES: Final = frozenset("triton xformers deepspeed liger_kernel".split())
GPU_PACKAGES: Final = IMPORTABLE_PACKAGES | frozenset(
    "flash_attn flash_attn_interface flash_attn_2_cuda flash_attn_3 sageattention sageattn apex bitsandbytes"
    " transformer_engine causal_conv1d mamba_ssm selective_scan_cuda cupy pycuda tensorrt nvdiffrast"
    " block_sparse_attn spas_sage_attn flashinfer vllm fused_dense_lib spconv MinkowskiEngine torch_tensorrt fla"
    " natten quack cutlass cuda".split()
)
# Functions under their decorators are written in another language, in which Python's
# syntax has other meanings.
_KERNEL_LANGUAGES: Final = frozenset("triton tilelang cutlass".split())
# What these packages compute on the host.
_OF_HOST: Final = frozenset("triton.cdiv triton.next_power_of_2".split())
# `is_flash_attn_2_available()`, `is_xformers_available()`, `flash_attn_installed()`:
# the libraries' own questions.
_AVAILABILITY: Final = re.compile(
    r"(^|_)(flash_?attn|flash_?attention|xformers|sage_?attention|triton|apex|bitsandbytes|causal_conv1d|mamba|"
    r"deepspeed|flashinfer|liger_kernel|vllm|spconv|natten)\w*_(available|installed)$"
)
# Keys of `ATTENTION_CLASSES[config._attn_implementation]` and the like.
_IMPLEMENTATION: Final = re.compile(
    r"(flash_?att(n|ention)|sage_?att(n|ention)|xformers)"
)
# Handlers that catch a failed import.
_IMPORT_ERRORS: Final = frozenset(
    "ImportError ModuleNotFoundError Exception BaseException".split()
)


def is_gpu_package(name: str) -> bool:
    """Whether a dotted name belongs to a package that needs a GPU."""
    return name.partition(".")[0] in GPU_PACKAGES


def is_kernel(decorators: Iterable[str]) -> bool:
    """Whether one of a function's decorators, as dotted names, makes it a kernel."""
    return any(
        decorator.partition(".")[0] in _KERNEL_LANGUAGES for decorator in decorators
    )


def needs_gpu(function: str) -> bool:
    """Whether a call of the function of that dotted name needs a GPU."""
    return is_gpu_package(function) and function not in _OF_HOST


@functools.cache
def asks_for_gpu_package(function: str) -> bool:
    """Whether a function of that bare name tells whether such a package is
    installed.
    """
    return _AVAILABILITY.search(function) is not None


def names_gpu_implementation(key: object) -> bool:
    """Whether an option of that name chooses code that runs one of these packages:
    "flash_attention_2".
    """
    return isinstance(key, str) and _IMPLEMENTATION.match(key) is not None


def is_failing_import(statement: ast.Try | ast.TryStar, own_package: str) -> bool:
    """Whether a `try` imports such a package and catches the error: on a TPU machine
    its handlers run.

    Args:
        statement: the `try`.
        own_package: the package that the file belongs to, which its own imports do not
            miss.
    """
    is_caught = any(map(_catches_import_error, statement.handlers))
    return (
        is_caught
        and next(imported_names(statement.body, own_package), None) is not None
    )


def imported_names(body: Iterable[ast.stmt], own_package: str) -> Iterator[str]:
    """The names that imports of such packages bind in a body."""
    for statement in body:
        match statement:
            case ast.Import(names=aliases):
                for alias in aliases:
                    top = alias.name.partition(".")[0]
                    if top in GPU_PACKAGES and top != own_package:
                        yield alias.asname or top
            case ast.ImportFrom(module=str(module), level=0, names=aliases):
                top = module.partition(".")[0]
                if top in GPU_PACKAGES and top != own_package:
                    yield from (alias.asname or alias.name for alias in aliases)


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    match handler.type:
        case None:
            return True
        case ast.Tuple(elts=types):
            return any(
                isinstance(name, ast.Name) and name.id in _IMPORT_ERRORS
                for name in types
            )
        case ast.Name(id=name):
            return name in _IMPORT_ERRORS
        case _:
            return False
