"""Whose code a file is: the one list of the packages whose lines are not the user's."""

import enum
import functools
import linecache
import os
import re
import sys
import sysconfig
from typing import Final, NamedTuple

# What traces a program: its frames say nothing about the program.
TRACING: Final = frozenset({"jax", "jaxlib", "torchax"})
# Packages below every model: what fails in one of them was asked for by other code.
LIBRARIES: Final = TRACING | frozenset(
    "torch tpuport accelerate numpy scipy einops opt_einsum functorch beartype jaxtyping typeguard wrapt contextlib"
    " functools importlib typing_extensions huggingface_hub safetensors triton tokamax _pytest pluggy IPython"
    " ipykernel".split()
)
# Packages whose models are read as the user's own code is; the rest of them is
# plumbing.
MODEL_MODULES: Final = {
    "transformers": ("transformers.models.",),
    "diffusers": ("diffusers.models.",),
    "torchvision": ("torchvision.models.",),
}
_STANDARD_LIBRARY: Final = os.path.join(sysconfig.get_paths()["stdlib"], "")  # noqa: PTH118 - compared as text
_INSTALLED: Final = tuple(
    os.path.join(sysconfig.get_paths()[name], "")  # noqa: PTH118 - compared as text
    for name in ("purelib", "platlib")
)
_TPUPORT: Final = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - compared as text
_PACKAGE_FILE: Final = re.compile(
    r".*[/\\](?:site|dist)-packages[/\\]([^/\\]+)(?:[/\\](.*))?"
)


class Owner(enum.IntEnum):
    """Whose code it is, from what nobody wants to see in a message to what everybody
    wants to see.
    """

    LIBRARY = 0
    MODEL_LIBRARY = 1  # what a library of models has beside the models, or helps them
    MODEL = 2  # the user's code, and models


class PackageFile(NamedTuple):
    """An installed package, and the path of a file in it with forward slashes; both ""
    for other files.
    """

    package: str
    path: str


def owner_of(file: str, module: str) -> Owner:
    """Whose code a file is, given the name of its module."""
    package = module.partition(".")[0]
    has_no_text = file.startswith("<") and not linecache.getlines(file)
    if package in LIBRARIES or is_standard(file) or has_no_text:
        return Owner.LIBRARY
    if is_helper(file, package):
        return Owner.MODEL_LIBRARY
    if package not in MODEL_MODULES or module.startswith(MODEL_MODULES[package]):
        return Owner.MODEL
    return Owner.MODEL_LIBRARY


def is_helper(file: str, package: str) -> bool:
    """Whether a file is of an installed package that defines no module of torch, such
    as one of configs: models call it, and it is no model.
    """
    if not is_installed(file) or package in LIBRARIES | MODEL_MODULES.keys():
        return False
    # Which classes there are depends on what has been imported.
    return not _defines_modules(package, len(sys.modules))


@functools.lru_cache(maxsize=4096)
def _defines_modules(package: str, count: int) -> bool:
    """Whether a package has a class of modules; also if torch, which knows them, is not
    there.
    """
    torch = sys.modules.get("torch")
    module_class = getattr(getattr(torch, "nn", None), "Module", None)
    if module_class is None:
        return True
    classes = [module_class]
    while classes:
        found = classes.pop().__subclasses__()
        if any(each.__module__.partition(".")[0] == package for each in found):
            return True
        classes += found
    return False


def is_installed(file: str) -> bool:
    """Whether a file came with an installed package."""
    return file.startswith(_INSTALLED)


@functools.cache
def is_standard(file: str) -> bool:
    """Whether a file is one of Python's standard library."""
    return file.startswith(_STANDARD_LIBRARY) and not is_installed(file)


@functools.lru_cache(maxsize=4096)
def package_file(file: str) -> PackageFile:
    """The package that a file belongs to: tpuport, "python" for the standard library,
    or an installed one.
    """
    if file.startswith(_TPUPORT):
        return PackageFile("tpuport", file[len(_TPUPORT) + 1 :])
    if match := _PACKAGE_FILE.fullmatch(file):
        # A package of one module is a file itself.
        return PackageFile(
            match[1].removesuffix(".py"), (match[2] or "").replace("\\", "/")
        )
    if is_standard(file) or file.startswith("<"):
        return PackageFile("python", file)
    return PackageFile("", "")


def is_library_file(file: str) -> bool:
    """Whether a file is of a package in `LIBRARIES`, of the standard library, or no
    file at all.
    """
    return package_file(file).package in LIBRARIES | {"python"}
