"""Classes of the linted code: their order of bases, what they are, the attributes of their instances."""

import ast
from typing import TYPE_CHECKING, Final

from tpuport.lint.abstract_values import (
    CONFIG,
    DEVICE,
    DTYPE,
    FALSE,
    STATIC,
    UNKNOWN,
    Class,
    External,
    Function,
    Instance,
    Method,
    Static,
    Value,
    join,
)
from tpuport.lint.interpreter import library
from tpuport.lint.modules import ClassInfo, FunctionInfo

if TYPE_CHECKING:
    from tpuport.lint.interpreter.frame import Frame
    from tpuport.lint.interpreter.machine import Machine

# Bases that make a class a module, wherever they come from.
_MODULE_BASES: Final = frozenset("Module LightningModule ModelMixin PreTrainedModel".split())
# Library bases whose constructors only keep the configuration and initialise weights.
NOT_BUILT: Final = frozenset(
    "PreTrainedModel ModelMixin ConfigMixin GenerationMixin PreTrainedConfig".split()
)
_OUTPUTS: Final = frozenset("ModelOutput BaseOutput".split())


class Classes:
    """What is known of classes; answers are kept for as long as the machine lives or the class's file is open."""

    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self._building: set[ClassInfo] = set()

    # --- bases ---

    def bases(self, info: ClassInfo) -> list[Value]:
        """The direct bases as values: `Class` or `External`."""
        kept = info.__dict__.get("bases")
        if kept is None:
            kept = info.__dict__["bases"] = [self._base(info, node) for node in info.node.bases]
        return kept

    def _base(self, info: ClassInfo, node: ast.expr) -> Value:
        while isinstance(node, ast.Subscript):
            node = node.value
        value = self.machine.module_expression(info.module, node)
        return value if isinstance(value, Class | External) else External(info.module.dotted(node))

    def mro(self, info: ClassInfo) -> list[ClassInfo]:
        """The class and its bases within the linted code, nearest first."""
        kept = info.__dict__.get("mro")
        if kept is None:
            info.__dict__["mro"] = [info]
            kept = [info]
            for base in self.bases(info):
                if isinstance(base, Class):
                    for one in self.mro(base.info):
                        # A base shared by two stands behind both.
                        if one in kept:
                            kept.remove(one)
                        kept.append(one)
            info.__dict__["mro"] = kept
        return kept

    def external_bases(self, info: ClassInfo) -> list[str]:
        """Dotted names of the library classes it descends from."""
        kept = info.__dict__.get("external")
        if kept is None:
            kept = [
                base.name for one in self.mro(info) for base in self.bases(one) if isinstance(base, External)
            ]
            info.__dict__["external"] = kept
        return kept

    def external_base(self, info: ClassInfo) -> str:
        """The first torch class it descends from, else ""."""
        return next((name for name in self.external_bases(info) if name.startswith("torch.nn.")), "")

    def is_module(self, info: ClassInfo) -> bool:
        """Whether instances are `nn.Module`s."""
        kept = info.__dict__.get("is_module")
        if kept is None:
            kept = info.__dict__["is_module"] = self._find_is_module(info)
        return kept

    def _find_is_module(self, info: ClassInfo) -> bool:
        names = self.external_bases(info)
        if any(name.startswith("torch.autograd") for name in names):
            return False
        if any(name.startswith("torch.nn.") for name in names):
            return True
        lasts = {name.rpartition(".")[2] for name in names} | {one.node.name for one in self.mro(info)[1:]}
        if lasts & _MODULE_BASES:
            return True
        # A base of a library that is not here: whoever defines forward(self, x) under it means a module.
        foreign = [
            name
            for name in names
            if name.partition(".")[0] not in {"object", "abc", "typing", "enum", "builtins"}
        ]
        return bool(foreign) and any("forward" in one.methods for one in self.mro(info))

    def is_autograd_function(self, info: ClassInfo) -> bool:
        """Whether it is a `torch.autograd.Function`."""
        return any(name.startswith("torch.autograd.") for name in self.external_bases(info))

    def is_output(self, info: ClassInfo) -> bool:
        """Whether it is an output class of transformers or diffusers, indexed by position and by name."""
        return any(one.node.name in _OUTPUTS for one in self.mro(info)) or any(
            name.rpartition(".")[2] in _OUTPUTS for name in self.external_bases(info)
        )

    def is_enumeration(self, info: ClassInfo) -> bool:
        """Whether it is an Enum."""
        return any(name.rpartition(".")[2] in {"Enum", "StrEnum", "IntEnum", "ExplicitEnum", "Flag"}
                   for name in self.external_bases(info))  # fmt: skip

    def is_replaced(self, info: ClassInfo) -> bool:
        """Whether a library's own decorator puts another forward in the place of the one written here.

        transformers' experts run a grouped matrix product unless they are configured otherwise.
        """
        return any(
            name.endswith("use_experts_implementation") for one in self.mro(info) for name in one.decorators
        )

    # --- members ---

    def method(self, info: ClassInfo, name: str) -> FunctionInfo | None:
        """The method of that name, from the class or its bases within the linted code."""
        for one in self.mro(info):
            found = one.methods.get(name)
            if found is not None:
                return found
        return None

    def class_level(self, info: ClassInfo, name: str) -> Value | None:
        """A class-level assignment's value."""
        for one in self.mro(info):
            if name in one.assigned:
                node = one.assigned[name]
                if node is not None:
                    return self.machine.module_expression(one.module, node)
                return self.machine.annotation(one.annotated[name], one.module)
        return None

    def declared_fields(self, info: ClassInfo) -> dict[str, Value]:
        """The annotated fields of a dataclass or output class, its bases' first."""
        found: dict[str, Value] = {}
        for one in reversed(self.mro(info)):
            for name, annotation in one.annotated.items():
                found[name] = self.machine.annotation(annotation, one.module)
        return found

    def attributes(self, info: ClassInfo) -> dict[str, Value]:
        """What `__init__` sets on `self`, interpreted with the parameters' declared types."""
        kept = info.__dict__.get("attributes")
        if kept is not None:
            return kept
        if info in self._building:
            return {}
        self._building.add(info)
        found: dict[str, Value] = {}
        init = self.method(info, "__init__")
        if init is not None and init.owner is not None and init.owner.node.name not in NOT_BUILT:
            self.machine.build(init, Instance(info), found)
        self._building.discard(info)
        info.__dict__["attributes"] = found
        return found

    def attribute(self, frame: "Frame", base: Instance, name: str) -> Value:
        """What `instance.name` is."""
        info = base.info
        for field, value in base.fields:
            if field == name:
                return value
        if frame.building is not None and base == frame.receiver and name in frame.building:
            return frame.building[name]
        method = self.method(info, name)
        if method is not None:
            return self._of_method(frame, base, method)
        value = self.attributes(info).get(name)
        if value is None or (isinstance(value, Static) and value.constant is None):
            later = self._set_later(info, name)
            value = later if value is None else join(value, later) if later is not None else value
        if value is not None:
            return _without_flag(value)
        value = self.class_level(info, name)
        if value is not None:
            return UNKNOWN if self.is_module(info) and isinstance(value, Static) else value
        return self._inherited(info, base, name)

    def _of_method(self, frame: "Frame", base: Instance, method: FunctionInfo) -> Value:
        if method.is_a("property", "cached_property", "lazy_property"):
            return self.machine.call_function(method, base, [], {}, frame)
        if method.is_a("staticmethod"):
            return Function(method)
        return Function(method, Class(base.info) if method.is_a("classmethod") else base)

    def _set_later(self, info: ClassInfo, name: str) -> Value | None:
        """A tensor that another method than `__init__` keeps in an attribute: what its assignments say."""
        kept = info.__dict__.setdefault("later", {})
        if name not in kept:
            kept[name] = None
            kept[name] = self._find_set_later(info, name)
        return kept[name]

    def _find_set_later(self, info: ClassInfo, name: str) -> Value | None:
        result: Value | None = None
        for one in self.mro(info):
            stores = one.__dict__.get("stores")
            if stores is None:
                stores = one.__dict__["stores"] = _stores(one)
            for node in stores.get(name, ()):
                value = self.machine.module_expression(one.module, node)
                result = value if result is None else join(result, value)
        return result

    def _inherited(self, info: ClassInfo, base: Instance, name: str) -> Value:
        if name == "config" or name.endswith("_config"):
            return CONFIG
        if name == "training":
            return STATIC if self.machine.options.training else FALSE
        if name in {"dtype", "device"} and self.is_module(info):
            return DTYPE if name == "dtype" else DEVICE
        if name in {"__class__"}:
            return Class(info)
        fields = self.declared_fields(info)
        if name in fields:
            return fields[name]
        external = self.external_base(info)
        if (
            external
            and external != "torch.nn.Module"
            and name in {"weight", "bias", "running_mean", "running_var"}
        ):
            return library.layer_attribute(external, name)
        return Method(base, name)

    # --- instances ---

    def instantiate(
        self, frame: "Frame", info: ClassInfo, args: list[Value], keywords: dict[str, Value]
    ) -> Value:
        """`Class(...)`."""
        if self.is_enumeration(info):
            return STATIC
        if self.is_module(info):
            return Instance(info)
        init = self.method(info, "__init__")
        names = {name.rpartition(".")[2] for name in self.external_bases(info)}
        if "NamedTuple" in names:
            fields = list(self.declared_fields(info))
            items = {**dict(zip(fields, args, strict=False)), **keywords}
            return Instance(info, tuple(items.items()))
        if self.is_output(info) or (init is None and self.declared_fields(info)):
            fields = list(self.declared_fields(info))
            given = {**dict(zip(fields, args, strict=False)), **keywords}
            return Instance(
                info, tuple((name, value) for name, value in given.items() if value is not UNKNOWN)
            )
        if init is None or init.owner is None or init.owner.node.name in NOT_BUILT:
            return Instance(info)
        found: dict[str, Value] = {}
        self.machine.build(init, Instance(info), found, args, keywords, frame)
        return Instance(
            info, tuple(sorted((name, value) for name, value in found.items() if value is not UNKNOWN))
        )


def _without_flag(value: Value) -> Value:
    """A constant that `__init__` sets may be set otherwise later: only its kind is sure."""
    if isinstance(value, Static) and value.constant is not ... and value.constant is not None:
        return Static(value.kind)
    return value


def _stores(info: ClassInfo) -> dict[str, list[ast.expr]]:
    """Expressions assigned to attributes of `self` outside `__init__`, those that are plain calls or names."""
    found: dict[str, list[ast.expr]] = {}
    for name, method in info.methods.items():
        if name == "__init__":
            continue
        for node in ast.walk(method.node):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                        found.setdefault(target.attr, []).append(node.value)
    return found
