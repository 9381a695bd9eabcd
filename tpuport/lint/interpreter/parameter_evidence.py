"""What the code of a function does with a parameter, as evidence of its type."""

import ast
import re
from typing import Final, NamedTuple

from tpuport.lint.abstract_values import (
    CACHE,
    CONFIG,
    UNKNOWN,
    Value,
    is_config_name,
    tensor,
)
from tpuport.lint.interpreter import tensor_functions
from tpuport.lint.modules import FunctionInfo
from tpuport.lint.scope_statements import all_nodes

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


# transformers before 5.24; since then it is `cache`, as others call things of any kind.
_CACHE_NAME: Final = re.compile("past_key_values?")


_CACHE_METHOD: Final = "get_seq_length"


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
    """Names that a body treats as tensors, names that it treats as something else, of
    these the caches, and what creates others' objects.
    """

    tensors: set[str]
    others: set[str]
    caches: set[str]
    objects: dict[str, ast.expr]


def value_by_evidence(
    info: FunctionInfo, name: str, optional: bool, entry: bool
) -> Value:
    """A tensor or a cache if the code or the name says so; else UNKNOWN."""
    if is_config_name(name):
        return CONFIG
    evidence = evidence_of(info)
    is_asked_for_length = entry and name in evidence.caches
    if is_asked_for_length or _CACHE_NAME.fullmatch(name):
        return CACHE
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


def evidence_of(info: FunctionInfo) -> _Evidence:
    """What a function does with its parameters; collected once."""
    facts = vars(info)
    if "evidence" not in facts:
        facts["evidence"] = _collect_evidence(info)
    return facts["evidence"]


def _collect_evidence(info: FunctionInfo) -> _Evidence:
    evidence = _Evidence(set(), set(), set(), {})
    for node in all_nodes(info.node):
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
                if attribute == _CACHE_METHOD:
                    evidence.caches.add(name)
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
