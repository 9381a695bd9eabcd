"""Packages that need a GPU, so that importing them fails on a TPU machine, and how code asks whether they are there."""

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Final

GPU_PACKAGES: Final = frozenset(
    "flash_attn flash_attn_interface flash_attn_2_cuda flash_attn_3 xformers sageattention sageattn triton apex"
    " bitsandbytes transformer_engine causal_conv1d mamba_ssm selective_scan_cuda cupy pycuda tensorrt nvdiffrast"
    " block_sparse_attn spas_sage_attn deepspeed flashinfer liger_kernel vllm fused_dense_lib spconv MinkowskiEngine"
    " torch_tensorrt fla natten quack cutlass cuda".split()
)
# `is_flash_attn_2_available()`, `is_xformers_available()`, `flash_attn_installed()`: the libraries' own questions.
_AVAILABILITY: Final = re.compile(
    r"(^|_)(flash_?attn|flash_?attention|xformers|sage_?attention|triton|apex|bitsandbytes|causal_conv1d|mamba|"
    r"deepspeed|flashinfer|liger_kernel|vllm|spconv|natten)\w*_(available|installed)$"
)
# Handlers that catch a failed import.
_IMPORT_ERRORS: Final = frozenset("ImportError ModuleNotFoundError Exception BaseException".split())


def is_gpu_package(name: str) -> bool:
    """Whether a dotted name belongs to a package that needs a GPU."""
    return name.partition(".")[0] in GPU_PACKAGES


def asks_for_gpu_package(function: str) -> bool:
    """Whether a function of that bare name tells whether such a package is installed."""
    return _AVAILABILITY.search(function) is not None


def is_failing_import(statement: ast.Try | ast.TryStar) -> bool:
    """Whether a `try` imports such a package and catches the error: on a TPU machine its handlers run."""
    return any(map(_catches_import_error, statement.handlers)) and any(_imported_packages(statement.body))


def _imported_packages(body: Iterable[ast.stmt]) -> Iterator[bool]:
    for statement in body:
        match statement:
            case ast.Import(names=names):
                yield any(is_gpu_package(alias.name) for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield is_gpu_package(module)


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    match handler.type:
        case None:
            return True
        case ast.Tuple(elts=types):
            return any(isinstance(name, ast.Name) and name.id in _IMPORT_ERRORS for name in types)
        case ast.Name(id=name):
            return name in _IMPORT_ERRORS
        case _:
            return False
