"""Small models of any installed package, without anything written about them: sizes and inputs are guessed by name.

Each class with a `forward` is built with the same small sizes (`dim=16`, `heads=2`) and called with inputs of
several shapes, until torch accepts one. What cannot be built or called is left out, which is most of the classes that
take objects of their package. So the sample is large, is chosen by nobody, and has the parts of models rather than
whole ones; `benchmarks.tiny_strangers` has whole ones of some packages.

    PYTHONPATH=DIRECTORY python -m benchmarks.agreement --package vocos --package effdet
"""

import ast
import contextlib
import dataclasses
import enum
import importlib
import importlib.util
import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import stand_ins

WIDTH = 16
LENGTH = 8
BATCH = 2
MOST_PARAMETERS = 30_000_000
MOST_CALLS = 3

# Numbers by what a parameter is called; the first pattern that its name holds decides.
_NUMBERS: tuple[tuple[str, Any], ...] = (
    (r"^(p|rate)$|drop|epsilon|^eps$|momentum|alpha|beta|scale|temperature|slope|lambda|ratio|prob|std", 0.5),
    (r"vocab|num_(embeddings|tokens|chars|symbols|words|phonemes)|n_(symbols|tokens|vocab)|codebook_size", 50),
    (r"head_(dim|size)|dim_head|d_head|d_k$|d_v$", 8),
    (r"head", 2),
    (r"kernel|window|filter_(size|length)|context", 3),
    (r"(num|n)_?(class|label|tag|target|output|speaker|lang|anchor|bin)|classes|^nc$", 4),
    (r"layer|depth|block|repeat|stage|level|step|iter|order|codebooks|quantizers|experts|groups?$", 2),
    (r"stride|dilation|padding|offset|factor|rank|axis", 1),
    (r"im(age|g)?_?size|resolution|^size$", 32),
    (r"patch", 8),
    (r"max|length|len$|num_(positions|queries|points|samples|frames)|seq", 32),
    (
        r"dim|width|hidden|channel|feature|size|filter|units|embed|model|planes|^c\d?$|^d$|^n$|^in|^out|_in$|_out$",
        WIDTH,
    ),
)  # fmt: skip
_LENGTHS = r"len(gth)?s?(_\w+)?$|num_frames$|sizes$"
_MASKS = r"mask"
_TOKENS = r"id(s|x)?$|token|text|label|target|tag|speaker|phone|index|words|src$|tgt$|^seq$"
_TIMES = r"^t$|^ts$|time|sigma|noise_level|step"

_SHAPES = (
    (BATCH, LENGTH, WIDTH),
    (BATCH, WIDTH, LENGTH),
    (BATCH, WIDTH, 8, 8),
    (BATCH, WIDTH),
    (BATCH, 3, 32, 32),
    (BATCH, 1, 512),
    (BATCH, WIDTH, 4, 8, 8),
    (BATCH, 2048),
)
_LAYERS: tuple[tuple[str, Any], ...] = (
    (r"act", nn.ReLU),
    (r"norm", nn.LayerNorm),
    (r"conv", nn.Conv2d),
)

stand_ins.install()


def names(package: str) -> list[str]:
    """The classes with a `forward` in a package's files, as "package.module.Class"; nothing is imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        raise ImportError(f"{package} is not installed")
    root = Path(spec.origin).parent
    if spec.submodule_search_locations is None:
        return [f"{package}.{name}" for name in _classes(Path(spec.origin))]
    return [
        f"{_module_name(package, path.relative_to(root))}.{name}"
        for path in sorted(root.rglob("*.py"))
        if not {"tests", "test", "testing"} & set(path.parts)
        for name in _classes(path)
    ]


def _module_name(package: str, path: Path) -> str:
    parts = [package, *path.with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _classes(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    except (SyntaxError, ValueError):
        return
    for node in tree.body:
        is_class = isinstance(node, ast.ClassDef)
        if is_class and any(getattr(part, "name", "") == "forward" for part in node.body):
            yield node.name


def build(name: str) -> tuple[Any, list[dict[str, Any]]]:
    """A model, and the arguments of the calls that it takes.

    Raises:
        RuntimeError: If no guess fits.
        Exception: What the package raises when it is imported, or its class when it is built.
    """
    module_name, _, class_name = name.rpartition(".")
    kind = getattr(importlib.import_module(module_name), class_name)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise TypeError("not a module")
    if _is_too_large(kind):
        raise RuntimeError("too large")
    model = construct(kind).eval()
    calls = list(accepted_calls(model))
    if not calls:
        raise RuntimeError("no guessed input is accepted")
    return model, calls


def _is_too_large(kind: Any) -> bool:
    """Whether a class has many parameters, without their memory; false where it cannot be built that way."""
    count = 0
    with contextlib.suppress(Exception), torch.device("meta"):
        count = sum(parameter.numel() for parameter in construct(kind).parameters())
    return count > MOST_PARAMETERS


def construct(kind: Any, depth: int = 0) -> Any:
    """An object of a class, whose required arguments are guessed."""
    arguments = {}
    # Of a class whose base class is a stand-in, the class itself has the signature of that one's metaclass.
    _, *parameters = inspect.signature(kind.__init__).parameters.values()
    for parameter in parameters:
        is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if not is_variadic and parameter.default is parameter.empty:
            arguments[parameter.name] = _option(parameter, _hints(kind).get(parameter.name), depth)
    return kind(**arguments)


def _hints(kind: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind.__init__)
    except Exception:  # noqa: BLE001 - annotations may name what is only imported for type checkers
        return {}


def _option(parameter: inspect.Parameter, hint: Any, depth: int) -> Any:
    """A value for a required argument of a class."""
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = options[0]
    if hint is bool:
        return False
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(iter(hint))
    if isinstance(hint, type) and depth < 3 and (dataclasses.is_dataclass(hint) or _is_own_module(hint)):
        return construct(hint, depth + 1)
    name = parameter.name.lower()
    number = next((value for pattern, value in _NUMBERS if re.search(pattern, name)), WIDTH)
    if hint is float:
        return float(number if number < 1 else 1.0)
    if hint is nn.Module or re.search(r"module|encoder$|decoder$|backbone|^fn$|^net$|^model$", name):
        return nn.Identity()
    if hint in (None, type) or not isinstance(hint, type):
        layer = next((value for pattern, value in _LAYERS if re.search(pattern, name)), None)
        if layer is not None and not re.search(r"dim|size|channel|num|kernel", name):
            return layer
    is_sequence = typing.get_origin(hint) in (list, tuple) or hint in (list, tuple)
    if is_sequence or re.search(r"channels_list|sizes$|dims$|channels$.*list", name):
        return [number, number]
    return number


def _is_own_module(hint: type) -> bool:
    return issubclass(hint, nn.Module) and hint is not nn.Module


def accepted_calls(model: nn.Module) -> Iterator[dict[str, Any]]:
    """The first few guessed calls that a model takes, some with its optional arguments."""
    count = 0
    for dtype in (torch.float32, torch.long):
        for shape in _SHAPES if dtype is torch.float32 else ((BATCH, LENGTH),):
            for with_optional in (True, False):
                call = guess_call(model, shape, dtype, with_optional=with_optional)
                if call is not None and _takes(model, call):
                    yield call
                    count += 1
            if count >= MOST_CALLS:
                return


def guess_call(
    model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, *, with_optional: bool
) -> dict[str, Any] | None:
    """Arguments of a call whose inputs have a shape; with optional ones None where there are none to add."""
    call, has_optional = {}, False
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        is_required = parameter.default is parameter.empty
        if not is_required and not (with_optional and parameter.default is None):
            continue
        special = _special_input(parameter.name.lower(), shape)
        if is_required:
            call[parameter.name] = _tensor(shape, dtype) if special is None else special
        elif special is not None:
            call[parameter.name] = special
            has_optional = True
    return None if with_optional and not has_optional else call


def _special_input(name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
    """An input whose name says that it is none of features."""
    steps = shape[-1] if len(shape) == 3 and shape[1] == WIDTH else shape[1]
    if re.search(_LENGTHS, name):
        return torch.tensor([steps, steps - 3]) if steps > 3 else None
    if re.search(_MASKS, name):
        mask = torch.ones(BATCH, steps, dtype=torch.bool)
        mask[1, steps // 2 :] = False
        return mask
    if re.search(_TOKENS, name):
        return torch.randint(0, 4, (BATCH, LENGTH))
    if re.search(_TIMES, name):
        return torch.rand(BATCH)
    return None


def _tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(0, 4, shape) if dtype is torch.long else torch.randn(shape)


def _takes(model: nn.Module, call: dict[str, Any]) -> bool:
    try:
        with torch.no_grad():
            model(**call)
    except Exception:  # noqa: BLE001 - the next guess may fit
        return False
    return True
