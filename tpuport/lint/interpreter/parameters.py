"""What a function's parameters are: by annotation, by default value, by what its body
does with them.
"""

import ast
import builtins
import re
from typing import Final, NamedTuple

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
    is_config_name,
    tensor,
)
from tpuport.lint.dtype_families import TENSOR_CLASSES
from tpuport.lint.interpreter import tensor_functions
from tpuport.lint.interpreter.frame import Environment, Interpreter, tuple_elements
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
            by_evidence = _value_by_evidence(
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
    """A parameter's value with what its name adds: `mask: Tensor` has booleans, as far
    as nothing else is known.
    """
    if (
        isinstance(value, Tensor)
        and name.endswith("mask")
        and not value.dtype
        and value.origin != "mask"
    ):
        return tensor(
            optional=value.optional,
            origin="mask",
            host=value.host,
            several=value.several,
        )
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
            )
        case Static(kind="int" | "float" as kind):
            return Static(kind)
        case _:
            return value


def _usual_object(interpreter: Interpreter, info: FunctionInfo, name: str) -> Value:
    """What a parameter without a value is replaced with, an object of a class: it shows
    what any of them does.
    """
    creation = _evidence(info).objects.get(name)
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


# --- evidence ---

# Names that the field gives to tensors, for parameters without annotation and default.
_TENSOR_NAMES: Final = re.compile(
    r"^(x|y|h|z|q|k|v|xq|xk|xv|img|txt|vec|pe|x_?[a-z0-9]?|query|key|value|hidden|input|inputs|latents?|sample|samples"
    r"|noise|images?|pixels|video|audio|features?|feats?|tokens|context|cond|logits|labels|targets?|weights?|temb|emb"
    r"|wavs?|waveforms?|mels?|signals?|src|tgt|trg|seq|obs|actions?|coords|xyz|pos|edge_index|edge_attr"
    r"|embeddings?|embeds|residual|states|freqs(_c?is|_cos|_sin)?|cos|sin|t|timesteps?|bias|scores|boxes|points"
    r"|[hiox]?lens|lengths|.*_(lens|lengths)|[abcepsuw]|inp|ids|preds?|predictions?|outputs?|y_(true|pred|hat)|rewards?"
    r"|rew|dones?|returns|advantages?|mu|sigma|logvar|log_probs?|distances?|anchors?|positives?|negatives?|adj|adjacency"
    r"|nodes|edges|rois|proposals|codes|theta|phi|angles|rotations?|vectors?|matri(x|ces)|faces|verts|vertices|rays(_[od])?"
    r"|depth|disp|flow|frames|spec(trograms?)?|f0|pitch|energy|durations?|memory|enc(oder)?_out(puts?)?|rgb|emissions?"
    r"|[hcxyu]0|[hc]x|source|events?|(img|image|frame|feat)_?[0-9]"
    r"|.*(_states?|_mask|mask|_ids|_embeds?|_embeddings?|_values|_features|_tokens|_bias|_latents?|_timesteps?|_emb"
    r"|_logits|_cis|_hidden|_tensor|_query|_key|_value|_weights?))$"
)
# Names of numbers, flags and other Python objects, some of which look like those above.
_PYTHON_NAMES: Final = re.compile(
    r"^(num|n|max|min|use|is|return|output|do|skip|with)_|_(size|length|len|dim|num|name|type|idx|index|config|kwargs|fn)$|^past_key_values?$|^kwargs$"
)
_CACHE_NAME: Final = re.compile("past_key_values?")
_TENSOR_METHODS: Final = tensor_functions.TENSOR_ONLY_METHODS | {
    "view",
    "reshape",
    "size",
    "dim",
}
_TENSOR_ATTRIBUTES: Final = frozenset({"shape", "dtype", "device", "ndim"})
_OTHER_ATTRIBUTES: Final = frozenset(
    "items keys append extend pop lower startswith format get_seq_length layers get".split()
)
_FUNCTIONS_OF_TENSORS: Final = frozenset(
    f"torch.{name}" for name in "matmul bmm softmax sigmoid exp einsum_ sum mean sqrt rsqrt cumsum masked_fill gather"
    " zeros_like ones_like empty_like full_like rand_like randn_like argsort argmax logical_not unsqueeze squeeze"
    " transpose chunk split flatten cos sin tanh clamp any all isnan isfinite abs sort topk norm log log1p diff cdist"
    " outer dot mm mv unbind permute index_select masked_select nonzero argmin std var median cumprod flip roll tril"
    " triu diagonal logsumexp bincount unique broadcast_to searchsorted bucketize".split()
)  # fmt: skip


class _Evidence(NamedTuple):
    """Names that a body treats as tensors, names that it treats as something else, and
    what creates others' objects.
    """

    tensors: set[str]
    others: set[str]
    objects: dict[str, ast.expr]


def _value_by_evidence(
    info: FunctionInfo, name: str, optional: bool, entry: bool
) -> Value:
    if is_config_name(name):
        return CONFIG
    if _CACHE_NAME.fullmatch(name):
        return CACHE
    evidence = _evidence(info)
    is_tensor_by_name = entry and _is_name_of_tensor(name, optional)
    if name in evidence.others or not (name in evidence.tensors or is_tensor_by_name):
        return UNKNOWN
    if name.endswith("_ids"):
        return tensor("int", optional=optional)
    if name.endswith("mask"):
        return tensor(optional=optional, origin="mask")
    return tensor(optional=optional)


def _is_name_of_tensor(name: str, optional: bool) -> bool:
    if _PYTHON_NAMES.search(name):
        return False
    # An optional parameter may be anything, but an optional mask is hardly ever a
    # Python object.
    if optional:
        return name.endswith("mask")
    return _TENSOR_NAMES.match(name) is not None


def _evidence(info: FunctionInfo) -> _Evidence:
    facts = vars(info)
    if "evidence" not in facts:
        facts["evidence"] = _collect_evidence(info)
    return facts["evidence"]


def _collect_evidence(info: FunctionInfo) -> _Evidence:
    evidence = _Evidence(set(), set(), {})
    for node in ast.walk(info.node):
        match node:
            # A constructor's `cfg.dtype` and `cfg.shape` are settings.
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if (
                attribute in _TENSOR_ATTRIBUTES
                and not info.qualname.endswith("__init__")
            ):
                evidence.tensors.add(name)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if (
                attribute in _OTHER_ATTRIBUTES
            ):
                evidence.others.add(name)
            case ast.Call():
                _add_evidence_of_call(info, node, evidence)
            case ast.Subscript(
                value=ast.Name(id=name), slice=ast.Constant(value=str())
            ):
                evidence.others.add(name)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple()):
                evidence.tensors.add(name)
            case ast.If() | ast.IfExp():
                _add_evidence_of_filling(info, node, evidence)
                _add_evidence_of_truth(node.test, evidence)
            case ast.BoolOp(
                op=ast.Or(), values=[ast.Name(id=name), ast.Call(func=creation)]
            ):
                evidence.objects[name] = creation
    return evidence


def _add_evidence_of_call(
    info: FunctionInfo, node: ast.Call, evidence: _Evidence
) -> None:
    match node.func:
        case ast.Attribute(value=ast.Name(id=receiver), attr=method) if (
            method in _TENSOR_METHODS
        ):
            evidence.tensors.add(receiver)
    match node.args:
        case [ast.Name(id=first), *_]:
            name = info.module.dotted(node.func)
            if name == "isinstance":
                evidence.others.add(first)
            elif (
                name.startswith("torch.nn.functional.") or name in _FUNCTIONS_OF_TENSORS
            ):
                evidence.tensors.add(first)


def _add_evidence_of_truth(test: ast.expr, evidence: _Evidence) -> None:
    """`if guidance:`, `if guidance and ...:`: torch refuses the truth of a tensor of
    several elements.
    """
    match test:
        case ast.Name(id=name):
            evidence.others.add(name)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            _add_evidence_of_truth(operand, evidence)
        case ast.BoolOp(values=values):
            for part in values:
                _add_evidence_of_truth(part, evidence)


def _add_evidence_of_filling(
    info: FunctionInfo, node: ast.If | ast.IfExp, evidence: _Evidence
) -> None:
    """`if x is None: x = torch.zeros(...)`, `torch.zeros(...) if x is None else x`: a
    tensor, if the caller has one.

    `Part() if x is None else x`: an object.
    """
    match node.test:
        case ast.Compare(
            left=ast.Name(id=name),
            ops=[ast.Is() | ast.IsNot() as operator, *_],
            comparators=[ast.Constant(value=None), *_],
        ):
            for filling in _fillings(node, name, isinstance(operator, ast.Is)):
                if _creates_tensor(info, filling):
                    evidence.tensors.add(name)
                elif isinstance(filling, ast.Call):
                    evidence.objects[name] = filling.func


def _fillings(node: ast.If | ast.IfExp, name: str, none_first: bool) -> list[ast.expr]:
    """What a name that is None is replaced with, where None has the first branch or the
    second.
    """
    fillings: list[ast.expr] = []
    match node:
        case ast.IfExp(body=filling, orelse=ast.Name(id=target)) if (
            none_first and target == name
        ):
            fillings.append(filling)
        case ast.IfExp(body=ast.Name(id=target), orelse=filling) if (
            not none_first and target == name
        ):
            fillings.append(filling)
        case ast.If():
            statements = node.body if none_first else node.orelse
            for statement in statements:
                match statement:
                    case ast.Assign(
                        targets=[ast.Name(id=target), *_], value=filling
                    ) if target == name:
                        fillings.append(filling)
    return fillings


def _creates_tensor(info: FunctionInfo, node: ast.expr) -> bool:
    """Whether it is a call that creates a tensor, by its name."""
    match node:
        case ast.Call(func=ast.Attribute(attr=method)) if method.startswith("new_"):
            return True
        case ast.Call(func=function):
            head, _, last = info.module.dotted(function).rpartition(".")
            return head == "torch" and last in tensor_functions.FACTORIES
        case _:
            return False


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
