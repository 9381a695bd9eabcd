"""Stand-ins for GPU packages that are not installed, so that code which imports them
can be imported.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from tpuport.errors import PortError
from tpuport.internals.torch_internals import let_torch_look_for_triton

# Packages that get a stand-in if they are not installed, each with the version that the
# stand-in reports.
PACKAGES = {
    "apex": "0.1",
    "flash_attn": "2.8.3",
    "flash_attn_2_cuda": "2.8.3",
    "flash_attn_3": "3.0.0",
    "flash_attn_interface": "3.0.0",
    "sageattention": "2.2.0",
    "spas_sage_attn": "0.1.0",
    "transformer_engine": "2.0.0",
    "xformers": "0.0.32",
}

_FLASH = (
    "flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_kvpacked_func", "flash_attn_varlen_func",
    "flash_attn_varlen_qkvpacked_func", "flash_attn_varlen_kvpacked_func",
)  # fmt: skip
_BLOCKS = (
    "BlockDiagonalMask", "BlockDiagonalCausalMask", "BlockDiagonalCausalFromBottomRightMask",
    "BlockDiagonalPaddedKeysMask", "BlockDiagonalCausalWithOffsetPaddedKeysMask",
)  # fmt: skip
_XFORMERS = ("memory_efficient_attention", "LowerTriangularMask", *_BLOCKS)

# Names that work like the package's, and the module of tpuport that has them; every
# other name can be imported, and raises an error when it is called.
WORKING = {
    "flash_attn": ("attention_packages", _FLASH),
    "flash_attn.flash_attn_interface": ("attention_packages", _FLASH),
    "flash_attn.bert_padding": (
        "bert_padding",
        ("unpad_input", "pad_input", "index_first_axis", "index_put_first_axis"),
    ),
    "xformers.ops": ("xformers_attention", _XFORMERS),
    "xformers.ops.fmha": ("xformers_attention", _XFORMERS),
    "xformers.ops.fmha.attn_bias": ("xformers_attention", _XFORMERS[1:]),
    # Not among PACKAGES: code whose import of it may fail has a branch without it.
    "triton": ("triton_decorators", ("Config", "autotune", "heuristics", "jit")),
    "sageattention": ("attention_packages", ("sageattn",)),
    "apex.normalization": ("attention_packages", ("FusedLayerNorm", "FusedRMSNorm")),
    "apex.normalization.fused_layer_norm": (
        "attention_packages",
        ("FusedLayerNorm", "FusedRMSNorm"),
    ),
}


# Packages whose frames lie between an import and who asked for it.
_IMPORTING = ("importlib", "tpuport")


class _Kind(type):
    """The type of placeholders: they can be named, inherited from and have attributes,
    but cannot be called.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise PortError(
            f"{cls.__module__}.{cls.__qualname__} is a stand-in of the GPU shim and computes nothing",
            fix="disable the part of the model that calls it, or replace it by plain torch",
        )

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(cls.__module__, f"{cls.__qualname__}.{name}")


def _placeholder(module: str, name: str) -> type:
    return _Kind(
        name.rpartition(".")[2], (), {"__module__": module, "__qualname__": name}
    )


class StandIn(ModuleType):
    """A module that has every attribute."""

    def __getattr__(self, name: str) -> Any:
        # The import system asks for such names, and would believe the answers.
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name == "__version__":
            return f"{PACKAGES.get(self.__name__, '0.0')}+tpuport"
        # Imported late: most repositories import the package without using its
        # attention.
        module, names = WORKING.get(self.__name__, ("", ()))
        if name in names:
            value = getattr(importlib.import_module(f"tpuport.gpu.{module}"), name)
        elif any(
            f"{known}.".startswith(f"{self.__name__}.{name}.") for known in WORKING
        ):
            # `from package import module` asks for an attribute first.
            value = StandIn(f"{self.__name__}.{name}", self.__doc__)
        else:
            value = _placeholder(self.__name__, name)
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for the packages given, after everything that is installed."""

    def __init__(
        self, packages: Iterable[str], note: Callable[[str, str], None]
    ) -> None:
        self.packages = set(packages)
        self.note = note
        self.modules: list[ModuleType] = []

    def install(self) -> None:
        """Start to provide stand-ins."""
        # Last, so that whatever is installed is found first.
        sys.meta_path.append(self)

    def uninstall(self) -> None:
        """Stop, and remove the stand-in modules from `sys.modules` and from their
        parent packages.
        """
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for module in self.modules:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]
            parent, _, name = module.__name__.rpartition(".")
            holder = getattr(sys.modules.get(parent), "__dict__", {})
            if holder.get(name) is module:
                del holder[name]
        self.modules.clear()
        importlib.invalidate_caches()

    def find_spec(
        self,
        fullname: str,
        path: Iterable[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        parent = sys.modules.get(fullname.rpartition(".")[0])
        if fullname == "triton":
            if _is_asked_by_torch():
                return None
            # Afterwards it would take the stand-in for a compiler.
            let_torch_look_for_triton()
        if fullname not in self.packages and not isinstance(parent, StandIn):
            return None
        # Any of them may have submodules.
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = StandIn(spec.name, "Stands in for a package that is not installed.")
        # `uninstall` removes these, and no module that the user has put in their place.
        self.modules.append(module)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self.note(f"import {module.__name__}", "a stand-in")


def _is_asked_by_torch() -> bool:
    """Whether torch's own code imports a module: it asks what it may generate code
    for.
    """
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] in _IMPORTING:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_globals.get("__name__", "").partition(".")[0] == "torch"
