"""What a function's parameters are: by annotation, by default value, by what its body
does with them.
"""

import ast
import builtins
import re
from typing import Final

from tpuport.lint.abstract_values import (
    BOOL,
    CACHE,
    CONFIG,
    DEVICE,
    DTYPE,
    FLOAT,
    INT,
    NONE,
    SHAPE,
    STATIC,
    STR,
    UNKNOWN,
    Class,
    External,
    Function,
    Instance,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Value,
    changed,
    tensor,
)
from tpuport.lint.dtype_families import TENSOR_CLASSES
from tpuport.lint.interpreter.frame import Environment, Interpreter, tuple_elements
from tpuport.lint.interpreter.parameter_evidence import evidence_of, value_by_evidence
from tpuport.lint.joins import (
    join,
    join_all,
)
from tpuport.lint.modules import ClassInfo, FunctionInfo, ModuleInfo

# --- annotations ---

_PLAIN: Final[dict[str, Value]] = {
    "int": INT, "float": FLOAT, "bool": BOOL, "str": STR, "None": NONE, "complex": Static("complex"), "bytes": STATIC,
    "torch.Size": SHAPE, "torch.dtype": DTYPE, "torch.device": DEVICE, "typing.Literal": STR, "slice": STATIC,
    "numpy.ndarray": STATIC, "typing.Sequence": Sequence("list", None, UNKNOWN),
}  # fmt: skip
_NAMED: Final = {**_PLAIN, "torch.nn.Parameter": tensor("float", origin="parameter")}
_SEQUENCES: Final = {
    "list": "list", "List": "list", "Sequence": "list", "Iterable": "iterator", "set": "set", "Set": "set",
    "Iterator": "iterator", "Generator": "iterator", "Collection": "list", "MutableSequence": "list",
    "tuple": "tuple", "Tuple": "tuple",
}  # fmt: skip
_MAPPINGS: Final = frozenset(
    "dict Dict Mapping MutableMapping OrderedDict DefaultDict".split()
)
# The tensor classes' own packages; a bare name may come from `from torch import *`.
_TENSOR_PACKAGES: Final = re.compile("^torch|jaxtyping|^$")
_WRAPPERS: Final = frozenset("Annotated Final ClassVar Required NotRequired".split())
# jaxtyping: Float[Tensor, "b n d"]
_JAXTYPING_FAMILIES: Final = {
    "Float": "float", "Int": "int", "Integer": "int", "Bool": "bool", "Complex": "complex", "Shaped": "", "Num": "",
}  # fmt: skip


def annotation_value(
    interpreter: Interpreter, node: ast.expr, module: ModuleInfo
) -> Value:
    """What an annotation promises; `UNKNOWN` if it promises nothing that the linter
    knows.
    """
    match node:
        case ast.Constant(value=None):
            return NONE
        case ast.Constant(value=str(text)):
            return _quoted(interpreter, text, module)
        case ast.BinOp(op=ast.BitOr()):
            return _union(interpreter, [node.left, node.right], module)
        case ast.Subscript():
            return _subscripted(interpreter, node, module)
        case _:
            return _named(interpreter, node, module)


def _quoted(interpreter: Interpreter, text: str, module: ModuleInfo) -> Value:
    try:
        return annotation_value(
            interpreter, ast.parse(text.strip(), mode="eval").body, module
        )
    except (SyntaxError, ValueError, RecursionError):
        return UNKNOWN


def _named(interpreter: Interpreter, node: ast.expr, module: ModuleInfo) -> Value:
    name = module.dotted(node)
    package, _, last = name.rpartition(".")
    if not name:
        return UNKNOWN
    if name in _NAMED:
        return _NAMED[name]
    if last in TENSOR_CLASSES and _TENSOR_PACKAGES.search(package):
        return tensor(TENSOR_CLASSES[last])
    if last.endswith(("Config", "Configuration")):
        return CONFIG
    if last in _SEQUENCES:
        return Sequence(_SEQUENCES[last], None, UNKNOWN)
    if last in _MAPPINGS:
        return Mapping((), UNKNOWN)
    return _class_or_alias(interpreter, node, module)


def _union(
    interpreter: Interpreter, parts: list[ast.expr], module: ModuleInfo
) -> Value:
    """Sequence | None, Instance | None: the object. int | Tensor: unknown.

    Tensor | Instance is a tensor: a compiled call gets no other object that code takes
    in a tensor's place.
    """
    promises = [annotation_value(interpreter, part, module) for part in parts]
    if any(isinstance(promise, Tensor) for promise in promises):
        promises = [
            promise for promise in promises if not isinstance(promise, Instance)
        ]
    return join_all(promises)


def _class_or_alias(
    interpreter: Interpreter, node: ast.expr, module: ModuleInfo
) -> Value:
    """What a name that the linted code defines promises: an instance of a class, or
    what an alias means.
    """
    if isinstance(node, ast.Name):
        match interpreter.project.definition(module, node.id):
            case (definition, ast.Subscript() | ast.BinOp(op=ast.BitOr()) as alias):
                return interpreter.annotation(alias, definition)
    value = interpreter.module_expression(module, node)
    match value:
        case Class(info=info) if interpreter.classes.is_enumeration(info):
            return STATIC
        case Class(info=info):
            return Instance(info)
        case External():
            return _PLAIN.get(value.name, UNKNOWN)
        case Tensor() | Sequence():
            return value
        case _:
            return UNKNOWN


def _subscripted(
    interpreter: Interpreter, node: ast.Subscript, module: ModuleInfo
) -> Value:
    last = module.dotted(node.value).rpartition(".")[2]
    parts = tuple_elements(node.slice)

    def promise(part: ast.expr) -> Value:
        return annotation_value(interpreter, part, module)

    match last, parts:
        case "Optional", [part, *_]:
            return join(promise(part), NONE)
        case "Union", _:
            return _union(interpreter, parts, module)
        case "Literal", _:
            return STATIC
        case "tuple" | "Tuple", _:
            return _tuple(parts, list(map(promise, parts)))
        case _, [part, *_] if last in _WRAPPERS:
            return promise(part)
        case _, [part, *_] if last in _SEQUENCES:
            return Sequence(_SEQUENCES[last], None, promise(part))
        case _, [_, part] if last in _MAPPINGS:
            return Mapping((), _item_of_dict(promise(part)))
        case _, [part, *_] if last in _JAXTYPING_FAMILIES and module.dotted(
            part
        ).endswith("Tensor"):
            return tensor(_JAXTYPING_FAMILIES[last])
        case _:
            return UNKNOWN


def _item_of_dict(promise: Value) -> Value:
    """What a dict's annotation promises of its items: dicts of tensors have sizes in
    them too.
    """
    if isinstance(promise, Tensor):
        return tensor(
            promise.dtype, promise.exact, optional=promise.optional, origin="item"
        )
    return promise


def _tuple(parts: list[ast.expr], values: list[Value]) -> Value:
    match parts:
        # `tuple[torch.Tensor]` is written for tuples of any length too.
        case [_] | [_, ast.Constant(value=builtins.Ellipsis)]:
            return Sequence("tuple", None, values[0])
        case _:
            return Sequence("tuple", tuple(values), join_all(values))


# --- definitions ---


def declared_value(
    interpreter: Interpreter, info: FunctionInfo, parameter: ast.arg, entry: bool
) -> Value:
    """What a parameter is if nothing is known of the call; `entry`: names count as
    evidence too.
    """
    default = info.defaults.get(parameter.arg)
    if (
        entry
        and parameter.arg == "labels"
        and default is not None
        and not interpreter.options.training
    ):
        # A model that gets labels computes its loss, which inference does not trace.
        return NONE
    match parameter.annotation, default:
        case None, None | ast.Constant(value=None):
            by_evidence = value_by_evidence(
                info, parameter.arg, default is not None, entry
            )
            return (
                _usual_object(interpreter, info, parameter.arg)
                if by_evidence is UNKNOWN
                else by_evidence
            )
        case None, expression:
            return _value_like(interpreter.module_expression(info.module, expression))
        case annotation, _:
            promised = annotation_value(interpreter, annotation, info.module)
    match promised, default:
        # Generation passes a cache of fixed shape, whatever class of transformers' kind
        # is promised.
        case Instance(info=declared), _ if _is_generation_cache(interpreter, declared):
            return CACHE
        # `mask: Tensor = None` is written for an optional tensor.
        case Tensor(), ast.Constant(value=None):
            return as_named(join(promised, NONE), parameter.arg)
        case _:
            return as_named(promised, parameter.arg)


def as_named(value: Value, name: str) -> Value:
    """A value with what its name adds: `mask: Tensor` has booleans, as far as nothing
    else is known.
    """
    if (
        isinstance(value, Tensor)
        and name.endswith("mask")
        and not value.dtype
        and value.origin != "mask"
    ):
        return changed(value, exact="", origin="mask")
    return value


def generalise(value: Value) -> Value:
    """An argument without what would only multiply the ways in which a function is
    called.
    """
    match value:
        case Tensor():
            return tensor(
                value.dtype,
                optional=value.optional,
                origin=value.inherited_origin,
                host=value.host,
                several=value.several,
                decided=value.decided,
                masked_read=value.masked_read,
            )
        case Static(kind="int" | "float" as kind):
            return Static(kind)
        case _:
            return value


def _usual_object(interpreter: Interpreter, info: FunctionInfo, name: str) -> Value:
    """What a parameter without a value is replaced with, an object of a class: it shows
    what any of them does.
    """
    creation = evidence_of(info).objects.get(name)
    created = (
        UNKNOWN
        if creation is None
        else interpreter.module_expression(info.module, creation)
    )
    return Instance(created.info) if isinstance(created, Class) else UNKNOWN


def _value_like(default: Value) -> Value:
    """What a parameter with this default is, whatever a caller passes."""
    match default:
        # Only the kind, since callers may pass any other number or flag.
        case Static(kind=kind):
            return Static(kind)
        # `norm_layer=nn.LayerNorm`, `block=Bottleneck`: the default shows what any of
        # them does.
        case Class() | Function():
            return default
        case External(name=name) if name.startswith("torch.nn."):
            return default
        case _:
            return UNKNOWN


def _is_generation_cache(interpreter: Interpreter, declared: ClassInfo) -> bool:
    """Whether a class is a cache as `generate` has them; others with such a name are
    parts of their models.
    """
    is_named_so = declared.node.name.endswith("Cache")
    return (
        is_named_so
        and interpreter.classes.method(declared, "get_seq_length") is not None
    )


def bound_parameter(function: Function) -> Environment:
    """The value of `self`, by what the parameter is called; empty for functions that
    have none.
    """
    if function.bound is None or function.info.is_a("staticmethod"):
        return {}
    # A method may collect even `self` in `*args`.
    return {
        parameter.arg: function.bound
        for parameter in function.info.positional_parameters[:1]
    }
