"""What a function's parameters are: by annotation, by default value, by what its body does with them."""

import ast
import re
from typing import TYPE_CHECKING, Final

from tpuport.lint.abstract_values import (
    BOOL,
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
    Instance,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Value,
    join,
    tensor,
)
from tpuport.lint.interpreter import dtypes, library
from tpuport.lint.modules import FunctionInfo, ModuleInfo

if TYPE_CHECKING:
    from tpuport.lint.interpreter.machine import Machine

_PLAIN: Final[dict[str, Value]] = {
    "int": INT, "float": FLOAT, "bool": BOOL, "str": STR, "None": NONE, "complex": Static("complex"), "bytes": STATIC,
    "torch.Size": SHAPE, "torch.dtype": DTYPE, "torch.device": DEVICE, "typing.Literal": STR, "slice": STATIC,
    "numpy.ndarray": STATIC, "typing.Sequence": Sequence("list", None, UNKNOWN),
}  # fmt: skip
_CONTAINERS: Final = {
    "list": "list", "List": "list", "Sequence": "list", "Iterable": "iterator", "set": "set", "Set": "set",
    "Iterator": "iterator", "Generator": "iterator", "Collection": "list", "MutableSequence": "list",
}  # fmt: skip
_MAPPINGS: Final = frozenset("dict Dict Mapping MutableMapping OrderedDict DefaultDict".split())

# Names that the field gives to tensors, for parameters without annotation and default.
_TENSOR_NAMES: Final = re.compile(
    r"^(x|h|z|q|k|v|xq|xk|xv|img|txt|vec|pe|x_?[a-z0-9]?|query|key|value|hidden|input|inputs|latents?|sample|samples"
    r"|noise|images?|pixels|video|audio|features?|feats?|tokens|context|cond|logits|labels|targets?|weights?|temb|emb"
    r"|embeddings?|embeds|residual|states|freqs(_c?is|_cos|_sin)?|cos|sin|t|timesteps?|bias|scores|boxes|points"
    r"|.*(_states?|_mask|mask|_ids|_embeds?|_embeddings?|_values|_features|_tokens|_bias|_latents?|_timesteps?|_emb"
    r"|_logits|_cis|_hidden|_tensor|_query|_key|_value|_weights?))$"
)
_COUNTED_NAMES: Final = re.compile(
    r"^(num|n|max|min|use|is|return|output|do|skip|with)_|_(size|length|len|dim|num|name|type|idx|index|config|kwargs|fn)$|^past_key_values?$|^kwargs$"
)


def annotation(machine: "Machine", node: ast.expr | None, module: ModuleInfo) -> Value:
    """What an annotation promises; `UNKNOWN` where it promises nothing the linter knows."""
    if node is None:
        return UNKNOWN
    if isinstance(node, ast.Constant):
        return NONE if node.value is None else _quoted(machine, node.value, module)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([annotation(machine, node.left, module), annotation(machine, node.right, module)])
    if isinstance(node, ast.Subscript):
        return _subscripted(machine, node, module)
    return _named(machine, node, module)


def _quoted(machine: "Machine", text: object, module: ModuleInfo) -> Value:
    if not isinstance(text, str):
        return UNKNOWN
    try:
        return annotation(machine, ast.parse(text.strip(), mode="eval").body, module)
    except (SyntaxError, ValueError, RecursionError):
        return UNKNOWN


def _union(values: list[Value]) -> Value:
    result = values[0]
    for value in values[1:]:
        # Sequence | None, Instance | None: the thing. int | Tensor: not known.
        result = join(result, value)
    return result


def _named(machine: "Machine", node: ast.expr, module: ModuleInfo) -> Value:
    name = module.dotted(node)
    last = name.rpartition(".")[2]
    if name in _PLAIN:
        return _PLAIN[name]
    if last in dtypes.TENSOR_CLASSES and (name.startswith("torch") or name == last or "jaxtyping" in name):
        return tensor(dtypes.TENSOR_CLASSES[last])
    if name == "torch.nn.Parameter":
        return tensor("float", origin="parameter")
    if last.endswith(("Config", "Configuration")):
        return CONFIG
    if last in _CONTAINERS or last in {"tuple", "Tuple"}:
        return Sequence(_CONTAINERS.get(last, "tuple"), None, UNKNOWN)
    if last in _MAPPINGS:
        return Mapping((), UNKNOWN)
    return _of_class(machine, node, module) if name else UNKNOWN


def _of_class(machine: "Machine", node: ast.expr, module: ModuleInfo) -> Value:
    """What a name of the linted code's own promises: an instance of a class, or what an alias stands for."""
    value = machine.module_expression(module, node)
    if isinstance(value, Class):
        return STATIC if machine.classes.is_enumeration(value.info) else Instance(value.info)
    if isinstance(value, External) and value.name in _PLAIN:
        return _PLAIN[value.name]
    return value if isinstance(value, Tensor | Sequence) else UNKNOWN


def _subscripted(machine: "Machine", node: ast.Subscript, module: ModuleInfo) -> Value:
    last = module.dotted(node.value).rpartition(".")[2]
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if last == "Optional":
        return join(annotation(machine, parts[0], module), NONE)
    if last == "Union":
        return _union([annotation(machine, part, module) for part in parts])
    if last in {"Annotated", "Final", "ClassVar", "Required", "NotRequired"}:
        return annotation(machine, parts[0], module)
    if last in _CONTAINERS:
        return Sequence(_CONTAINERS[last], None, annotation(machine, parts[0], module))
    if last in {"tuple", "Tuple"}:
        return _tuple(machine, parts, module)
    if last in _MAPPINGS and len(parts) == 2:
        return Mapping((), annotation(machine, parts[1], module))
    if last == "Literal":
        return STATIC
    # jaxtyping: Float[Tensor, "b n d"]
    if last in {"Float", "Int", "Bool", "Shaped", "Num", "Complex", "Integer"}:
        family = {"Float": "float", "Int": "int", "Integer": "int", "Bool": "bool", "Complex": "complex"}.get(
            last, ""
        )
        return tensor(family) if module.dotted(parts[0]).endswith("Tensor") else UNKNOWN
    return UNKNOWN


def _tuple(machine: "Machine", parts: list[ast.expr], module: ModuleInfo) -> Value:
    if len(parts) == 2 and isinstance(parts[1], ast.Constant) and parts[1].value is ...:
        return Sequence("tuple", None, annotation(machine, parts[0], module))
    values = tuple(annotation(machine, part, module) for part in parts)
    if len(values) == 1:
        # `tuple[torch.Tensor]` is written for tuples of any length.
        return Sequence("tuple", None, values[0])
    result = values[0]
    for value in values[1:]:
        result = join(result, value)
    return Sequence("tuple", values, result)


def names(info: FunctionInfo) -> list[ast.arg]:
    """All parameters that have a name, `self` included."""
    given = info.node.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def defaults(info: FunctionInfo) -> dict[str, ast.expr]:
    """Default expression by parameter name."""
    kept = info.__dict__.get("defaults")
    if kept is None:
        given = info.node.args
        positional = [*given.posonlyargs, *given.args]
        kept = {
            arg.arg: node for arg, node in zip(reversed(positional), reversed(given.defaults), strict=False)
        }
        kept.update(
            {arg.arg: node for arg, node in zip(given.kwonlyargs, given.kw_defaults, strict=True) if node}
        )
        info.__dict__["defaults"] = kept
    return kept


def declared(machine: "Machine", info: FunctionInfo, arg: ast.arg, entry: bool) -> Value:
    """What a parameter is when nothing is known of the call; `entry`: names count as evidence too."""
    default = defaults(info).get(arg.arg)
    if entry and arg.arg == "labels" and default is not None and not machine.options.training:
        # With labels a model computes its loss: nothing that inference traces.
        return NONE
    said = annotation(machine, arg.annotation, info.module)
    if arg.annotation is not None and said is not UNKNOWN:
        is_none = isinstance(default, ast.Constant) and default.value is None
        return join(said, NONE) if is_none and isinstance(said, Tensor) else said
    if arg.annotation is not None:
        return UNKNOWN
    if default is not None and not (isinstance(default, ast.Constant) and default.value is None):
        value = machine.module_expression(info.module, default)
        return Static(value.kind) if isinstance(value, Static) else UNKNOWN
    return _by_evidence(info, arg.arg, default is not None, entry)


def _by_evidence(info: FunctionInfo, name: str, optional: bool, entry: bool) -> Value:
    for_tensor, against = evidence(info)
    if name == "config" or name.endswith("_config"):
        return CONFIG
    if name in against:
        return UNKNOWN
    origin = "mask" if name.endswith("mask") else ""
    family = "int" if name.endswith("_ids") else ""
    if name in for_tensor:
        return tensor(family, optional=optional, origin=origin)
    if entry and name.endswith("mask") and not _COUNTED_NAMES.search(name):
        return tensor(optional=optional, origin=origin)
    if entry and not optional and _TENSOR_NAMES.match(name) and not _COUNTED_NAMES.search(name):
        return tensor(family, origin=origin)
    return UNKNOWN


def evidence(info: FunctionInfo) -> tuple[frozenset[str], frozenset[str]]:
    """Names that the body treats as tensors, and names that it treats as something else."""
    kept = info.__dict__.get("evidence")
    if kept is None:
        kept = info.__dict__["evidence"] = _collect_evidence(info)
    return kept


def _collect_evidence(info: FunctionInfo) -> tuple[frozenset[str], frozenset[str]]:
    tensors: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(info.node):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            # A constructor's `cfg.dtype` and `cfg.shape` are settings.
            if node.attr in _TENSOR_SETTINGS and not info.qualname.endswith("__init__"):
                tensors.add(node.value.id)
            elif node.attr in _SAY_OTHER:
                others.add(node.value.id)
        elif isinstance(node, ast.Call):
            _evidence_of_call(info, node, tensors, others)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                others.add(node.value.id)
            elif isinstance(node.slice, ast.Tuple):
                tensors.add(node.value.id)
        elif isinstance(node, ast.If | ast.IfExp):
            _evidence_of_filling(info, node, tensors)
    return frozenset(tensors), frozenset(others)


def _evidence_of_call(info: FunctionInfo, node: ast.Call, tensors: set[str], others: set[str]) -> None:
    func = node.func
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.attr in _SAY_TENSOR:
        tensors.add(func.value.id)
    if not node.args or not isinstance(node.args[0], ast.Name):
        return
    name = info.module.dotted(node.func)
    first = node.args[0].id
    if name == "isinstance":
        others.add(first)
    elif name.startswith("torch.nn.functional.") or name in _TORCH_OF_TENSOR:
        tensors.add(first)


def _evidence_of_filling(info: FunctionInfo, node: ast.If | ast.IfExp, tensors: set[str]) -> None:
    """`if x is None: x = torch.zeros(...)`, `torch.zeros(...) if x is None else x`: a tensor, if it is given."""
    test = node.test
    if not (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and isinstance(test.ops[0], ast.Is)
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value is None
    ):
        return
    name = test.left.id
    if isinstance(node, ast.IfExp):
        filled = isinstance(node.orelse, ast.Name) and node.orelse.id == name and _is_built(info, node.body)
    else:
        filled = any(
            isinstance(one, ast.Assign)
            and isinstance(one.targets[0], ast.Name)
            and one.targets[0].id == name
            and _is_built(info, one.value)
            for one in node.body
        )
    if filled:
        tensors.add(name)


def _is_built(info: FunctionInfo, node: ast.expr) -> bool:
    """Whether it is a call that makes a tensor, by its name."""
    if not isinstance(node, ast.Call):
        return False
    head, _, last = info.module.dotted(node.func).rpartition(".")
    if head == "torch" and last in library.FACTORIES:
        return True
    return isinstance(node.func, ast.Attribute) and node.func.attr.startswith("new_")


# Called on a name, these say that it is a tensor; read as attributes, the settings say so.
_SAY_TENSOR: Final = library.TENSOR_ONLY_METHODS | {"view", "reshape", "size", "dim"}
_TENSOR_SETTINGS: Final = frozenset({"shape", "dtype", "device", "ndim"})
_SAY_OTHER: Final = frozenset(
    "items keys append extend pop lower startswith format get_seq_length layers get".split()
)
_TORCH_OF_TENSOR: Final = frozenset(
    f"torch.{name}" for name in "matmul bmm softmax sigmoid exp einsum_ sum mean sqrt rsqrt cumsum masked_fill gather"
    " zeros_like ones_like empty_like full_like rand_like randn_like argsort argmax logical_not unsqueeze squeeze"
    " transpose chunk split flatten cos sin tanh clamp any all isnan abs".split()
)  # fmt: skip
