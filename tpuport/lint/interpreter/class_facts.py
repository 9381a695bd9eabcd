"""Classes of the linted code: their bases, whether they are modules, the attributes
that `__init__` sets.

Answers are stored in the `ClassInfo` that they describe. They last as long as the
class's file stays open, and rules read some of them there.
"""

import ast
import collections
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from tpuport.lint.abstract_values import (
    Class,
    External,
    Function,
    Instance,
    Value,
    options_of,
)
from tpuport.lint.joins import (
    join_optional,
)
from tpuport.lint.modules import ClassInfo, FunctionInfo, ModuleInfo
from tpuport.lint.scope_statements import statements_within

# Bases that make a class a module, whichever library they come from.
_MODULE_BASES: Final = frozenset(
    "Module LightningModule ModelMixin PreTrainedModel".split()
)
# Library bases whose constructors only store the configuration and initialise weights.
NOT_BUILT: Final = frozenset(
    "PreTrainedModel ModelMixin ConfigMixin GenerationMixin PreTrainedConfig".split()
)
# Libraries of models, what their models descend from, and what else they export: models
# and no other modules.
MODEL_LIBRARIES: Final = frozenset({"transformers", "diffusers"})
_LIBRARY_MODELS: Final = frozenset({"PreTrainedModel", "ModelMixin"})
_EXPORTED: Final = re.compile(rf"({'|'.join(sorted(MODEL_LIBRARIES))})\.[^.]+")
_OUTPUTS: Final = frozenset("ModelOutput BaseOutput".split())
_ENUMERATIONS: Final = frozenset("Enum StrEnum IntEnum ExplicitEnum Flag".split())
_DICTS: Final = frozenset("dict OrderedDict UserDict defaultdict Dict".split())
_LISTS: Final = frozenset("list UserList List".split())
_STANDARD_LIBRARY: Final = frozenset("object abc typing enum builtins".split())

Answer = TypeVar("Answer")


class Evaluator(ABC):
    """What facts about classes need of the interpreter."""

    @abstractmethod
    def module_expression(
        self, module: ModuleInfo, node: ast.expr, receiver: Instance | None = None
    ) -> Value:
        """An expression evaluated among a module's names; in a method `self` is the
        receiver.
        """

    @abstractmethod
    def annotation(self, node: ast.expr | None, module: ModuleInfo) -> Value:
        """What an annotation promises."""

    @abstractmethod
    def build(
        self, init: FunctionInfo, instance: Instance, attributes: dict[str, Value]
    ) -> None:
        """Interpret a constructor by its declared parameters. It sets `attributes`."""


def _stored(
    method: Callable[["Classes", ClassInfo], Answer],
) -> Callable[["Classes", ClassInfo], Answer]:
    """Store a method's answers in the classes that they are about, under the method's
    name.
    """
    name = method.__name__

    def stored_method(self: "Classes", info: ClassInfo) -> Any:
        facts = vars(info)
        if name not in facts:
            facts[name] = method(self, info)
        return facts[name]

    stored_method.__doc__ = method.__doc__
    return stored_method


def last_names(dotted_names: Iterable[str]) -> set[str]:
    """Names without the modules before them."""
    return {name.rpartition(".")[2] for name in dotted_names}


class Classes:
    """Facts about classes of the linted code."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._building: set[ClassInfo] = set()

    # --- bases ---

    @_stored
    def bases(self, info: ClassInfo) -> list[Value]:
        """The direct bases as values: `Class` or `External`."""
        return [self._base(info, node) for node in info.node.bases]

    def _base(self, info: ClassInfo, node: ast.expr) -> Value:
        # `Generic[T]`, `Base[int]`
        while isinstance(node, ast.Subscript):
            node = node.value
        value = self._evaluator.module_expression(info.module, node)
        if isinstance(value, Class | External):
            return value
        # A name that nothing in the linted code defines may still be known by its
        # import.
        return External(info.module.dotted(node))

    def mro(self, info: ClassInfo) -> list[ClassInfo]:
        """The class and its bases within the linted code, nearest first."""
        facts = vars(info)
        if "mro" not in facts:
            # Code that is being edited may have a class that is its own base; the
            # recursion ends here.
            facts["mro"] = [info]
            facts["mro"] = self._linearise(info)
        return facts["mro"]

    def _linearise(self, info: ClassInfo) -> list[ClassInfo]:
        # A dict keeps the order and finds an ancestor at once, in hierarchies of
        # thousands of classes too.
        order = {info: None}
        for base in self.bases(info):
            if not isinstance(base, Class):
                continue
            for ancestor in self.mro(base.info):
                # A base that two share comes after both.
                order.pop(ancestor, None)
                order[ancestor] = None
        return list(order)

    @_stored
    def external_bases(self, info: ClassInfo) -> list[str]:
        """Dotted names of the library classes that it descends from."""
        bases = itertools.chain.from_iterable(map(self.bases, self.mro(info)))
        return [base.name for base in bases if isinstance(base, External)]

    def _bases_in(self, info: ClassInfo, package: str) -> list[str]:
        return [
            name for name in self.external_bases(info) if name.startswith(f"{package}.")
        ]

    def torch_base(self, info: ClassInfo) -> str:
        """The first torch module class that it descends from, else ""."""
        return next(iter(self._bases_in(info, "torch.nn")), "")

    def layer_base(self, info: ClassInfo) -> str:
        """The torch layer, with a forward of its own, that it descends from, else
        "".
        """
        base = self.torch_base(info)
        if base == "torch.nn.Module":
            return ""
        return base

    @_stored
    def is_library_model(self, info: ClassInfo) -> bool:
        """Whether it is a model of transformers or diffusers, or derived from one."""
        is_derived = any(
            base.node.name in _LIBRARY_MODELS
            and base.module.top_package in MODEL_LIBRARIES
            for base in self.mro(info)
        )
        return is_derived or any(map(_EXPORTED.fullmatch, self.external_bases(info)))

    @_stored
    def is_module(self, info: ClassInfo) -> bool:
        """Whether instances are `nn.Module`s."""
        if self.is_autograd_function(info):
            return False
        if self.torch_base(info):
            return True
        names = self.external_bases(info)
        mro = self.mro(info)
        inherited = last_names(names) | {ancestor.node.name for ancestor in mro[1:]}
        if inherited & _MODULE_BASES:
            return True
        # The base is in a library that is not installed: whoever defines forward(self,
        # x) under it means a module.
        libraries = {name.partition(".")[0] for name in names}
        return (
            not libraries <= _STANDARD_LIBRARY
            and self.method(info, "forward") is not None
        )

    def is_autograd_function(self, info: ClassInfo) -> bool:
        """Whether it is a `torch.autograd.Function`."""
        return bool(self._bases_in(info, "torch.autograd"))

    def is_optimizer(self, info: ClassInfo) -> bool:
        """Whether it is a `torch.optim.Optimizer`."""
        return bool(self._bases_in(info, "torch.optim"))

    def is_output(self, info: ClassInfo) -> bool:
        """Whether it is an output class of transformers or diffusers, indexed by
        position and by name.
        """
        own_names = {ancestor.node.name for ancestor in self.mro(info)}
        return bool(_OUTPUTS & (own_names | last_names(self.external_bases(info))))

    def is_named_tuple(self, info: ClassInfo) -> bool:
        """Whether it is a `typing.NamedTuple`."""
        return "NamedTuple" in last_names(self.external_bases(info))

    def is_dict(self, info: ClassInfo) -> bool:
        """Whether it is a dict with attributes or methods of its own."""
        return bool(_DICTS & last_names(self.external_bases(info)))

    def is_list(self, info: ClassInfo) -> bool:
        """Whether it is a list with attributes or methods of its own."""
        return bool(_LISTS & last_names(self.external_bases(info)))

    def is_enumeration(self, info: ClassInfo) -> bool:
        """Whether it is an Enum."""
        return bool(_ENUMERATIONS & last_names(self.external_bases(info)))

    def is_replaced(self, info: ClassInfo) -> bool:
        """Whether a library's decorator replaces the forward that is written in the
        class.

        transformers' experts run a grouped matrix product unless they are configured
        otherwise, by the user or by a model that computes its experts in its own way.
        """
        if "get_correct_experts_implementation" in info.module.method_names:
            return False
        decorators = itertools.chain.from_iterable(
            ancestor.decorators for ancestor in self.mro(info)
        )
        return "use_experts_implementation" in last_names(decorators)

    # --- members ---

    def method(self, info: ClassInfo, name: str) -> FunctionInfo | None:
        """The method of that name, from the class or its bases within the linted
        code.
        """
        return next(
            (owner.methods[name] for owner in self.mro(info) if name in owner.methods),
            None,
        )

    def forwards(self, info: ClassInfo) -> list[Function]:
        """What a call of a module may run: the functions that its constructor sets as
        `forward`, else the method.
        """
        assigned = self.attributes(info).get("forward")
        if assigned is not None:
            functions = [
                option
                for option in options_of(assigned)
                if isinstance(option, Function)
            ]
            if functions:
                return functions
        method = self.method(info, "forward")
        return [] if method is None else [Function(method, Instance(info))]

    def constructor(self, info: ClassInfo) -> FunctionInfo | None:
        """The `__init__` that is worth interpreting: None if there is none, or only a
        library's.
        """
        init = self.method(info, "__init__")
        if init is None or init.owner is None or init.owner.node.name in NOT_BUILT:
            return None
        return init

    def class_level(self, info: ClassInfo, name: str) -> Value | None:
        """The value of a class-level assignment."""
        for ancestor in self.mro(info):
            if name in ancestor.assigned:
                node = ancestor.assigned[name]
                if node is not None:
                    return self._evaluator.module_expression(ancestor.module, node)
                return self._evaluator.annotation(
                    ancestor.annotated[name], ancestor.module
                )
        return None

    def declared_fields(self, info: ClassInfo) -> dict[str, Value]:
        """The annotated fields of a dataclass or output class, those of its bases
        first.
        """
        fields: dict[str, Value] = {}
        for ancestor in reversed(self.mro(info)):
            for name, annotation in ancestor.annotated.items():
                fields[name] = self._evaluator.annotation(annotation, ancestor.module)
        return fields

    def constructor_fields(self, info: ClassInfo) -> Iterable[str]:
        """The fields that a dataclass's constructor takes, in its order. What a base
        that is no dataclass annotates is not among them.
        """
        ancestors = self.mro(info)
        decorated = [
            ancestor
            for ancestor in ancestors
            if "dataclass" in last_names(ancestor.decorators)
        ]
        return dict.fromkeys(
            name
            for ancestor in reversed(decorated or ancestors)
            for name in ancestor.annotated
        )

    def attributes(self, info: ClassInfo) -> dict[str, Value]:
        """What `__init__` sets on `self`, interpreted with the declared types of its
        parameters.
        """
        facts = vars(info)
        if "attributes" in facts:
            return facts["attributes"]
        # A constructor may read an attribute of its own class.
        if info in self._building:
            return {}
        self._building.add(info)
        attributes: dict[str, Value] = {}
        init = self.constructor(info)
        if init is not None:
            self._evaluator.build(init, Instance(info), attributes)
        self._building.discard(info)
        facts["attributes"] = attributes
        return attributes

    def attribute_set_later(self, info: ClassInfo, name: str) -> Value | None:
        """An attribute that other methods than `__init__` set: the join of what they
        assign, None if none does.
        """
        known = vars(info).setdefault("attributes_set_later", {})
        if name not in known:
            # An assignment may read the attribute that it sets.
            known[name] = None
            known[name] = self._join_assignments(info, name)
        return known[name]

    def _join_assignments(self, info: ClassInfo, name: str) -> Value | None:
        result: Value | None = None
        for ancestor in self.mro(info):
            for node in self._assignments_outside_init(ancestor)[name]:
                assigned = self._evaluator.module_expression(
                    ancestor.module, node, Instance(info)
                )
                result = join_optional(result, assigned)
        return result

    @_stored
    def _assignments_outside_init(self, info: ClassInfo) -> dict[str, list[ast.expr]]:
        """Calls that are assigned to attributes outside `__init__`, by attribute."""
        assignments: dict[str, list[ast.expr]] = collections.defaultdict(list)
        methods = [
            method.node for name, method in info.methods.items() if name != "__init__"
        ]
        for node in itertools.chain.from_iterable(map(statements_within, methods)):
            match node:
                case ast.Assign(value=ast.Call() as call, targets=targets):
                    for name in filter(None, map(_attribute_of_name, targets)):
                        assignments[name].append(call)
        return assignments

    def is_set_later(self, info: ClassInfo, name: str) -> bool:
        """Whether another method than `__init__` sets an attribute to something else
        than a constant.
        """
        return any(
            name in self._names_set_outside_init(ancestor)
            for ancestor in self.mro(info)
        )

    @_stored
    def _names_set_outside_init(self, info: ClassInfo) -> set[str]:
        names: set[str] = set()
        methods = [
            method.node for name, method in info.methods.items() if name != "__init__"
        ]
        for node in itertools.chain.from_iterable(map(statements_within, methods)):
            match node:
                case ast.Assign(value=value, targets=targets) if not isinstance(
                    value, ast.Constant
                ):
                    names.update(
                        filter(None, map(_attribute_of_name, _flattened(targets)))
                    )
        return names

    def entries_set_later(self, info: ClassInfo) -> dict[str, Value]:
        """What methods other than `__init__` put into containers: joined, by name."""
        facts = vars(info)
        if "entries_set_later" in facts:
            return facts["entries_set_later"]
        # What is added may be computed from what is there.
        entries: dict[str, Value] = facts.setdefault("entries_set_later", {})
        for ancestor in reversed(self.mro(info)):
            methods = [
                method.node
                for name, method in ancestor.methods.items()
                if name != "__init__"
            ]
            for node in itertools.chain.from_iterable(map(statements_within, methods)):
                match node:
                    # `self.x[key] = f(...)`, `self.x.append(f(...))`
                    case ast.Assign(
                        targets=[ast.Subscript(value=container)],
                        value=ast.Call() as added,
                    ):
                        pass
                    case ast.Expr(
                        value=ast.Call(
                            func=ast.Attribute(value=container, attr="append"),
                            args=[ast.Call() as added],
                        )
                    ):
                        pass
                    case _:
                        continue
                name = _attribute_of_name(container)
                if name is not None:
                    value = self._evaluator.module_expression(
                        ancestor.module, added, Instance(info)
                    )
                    entries[name] = join_optional(entries.get(name), value)
        return entries


def _flattened(targets: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """The targets of an assignment, those in tuples one by one."""
    for target in targets:
        match target:
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                yield from _flattened(elements)
            case _:
                yield target


def _attribute_of_name(target: ast.AST) -> str | None:
    """`x` in `self.x`."""
    match target:
        case ast.Attribute(value=ast.Name(), attr=name):
            return name
    return None
