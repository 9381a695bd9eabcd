"""The values of models' configs: read from files, checked, and named where a library
does not accept them.

Needs no torch.
"""

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.trace_errors import first_line

# Numbers of something that a model has at least one of.
_COUNTS: Final = re.compile(
    r"(size|heads|layers|dims?|channels|experts|embeddings|embd|width|groups)$|^(n|d|num)_"
)
# Sizes that every model has if its config has them, and the largest that are read; no
# model is near them.
_MOST_LAYERS: Final = 10_000
_SIZES: Final = {
    "vocab_size": 2**31, "hidden_size": 2**31, "num_hidden_layers": _MOST_LAYERS, "num_attention_heads": 2**31,
    "num_key_value_heads": 2**31, "head_dim": 2**31,
}  # fmt: skip
# Added to a variance before its root is taken.
_EPSILON: Final = re.compile(r"(^|_)(eps|epsilon)$")
_ROTARY: Final = ("rope_parameters", "rope_scaling")
# Configs nest a text model, or settings for a kind of layer.
_LARGEST_DEPTH: Final = 20


def read_json(path: Path, fix: str = "give a model's config.json") -> dict[str, Any]:
    """The object in the file.

    Args:
        fix: what to do about a file with anything else.

    Raises:
        PortError: there is none; the message names the line.
    """
    if not path.is_file():
        raise PortError("this is not a file", where=str(path), fix=fix)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PortError(
            f"the file cannot be read: {error}", where=str(path), fix=fix
        ) from error
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        what = f"this is not JSON: {error.msg}" if text.strip() else "the file is empty"
        where = f"{path}:{error.lineno}"
        raise PortError(what, where=where, fix=f"{fix}, whole") from error
    except (RecursionError, ValueError) as error:
        raise PortError(
            f"this JSON cannot be read: {error}", where=str(path), fix=fix
        ) from error
    if not isinstance(raw, dict):
        raise PortError("this is JSON, but not an object", where=str(path), fix=fix)
    return raw


def check_values(raw: Mapping[str, Any], path: str) -> None:
    """PortError, which lists the fields, for values with which no model computes what
    it should.

    Such are sizes that are not whole numbers above 0, or that no model has; rotary
    bases and factors, and epsilons, that are not positive numbers; and a padding token
    outside the vocabulary.
    """
    problems = list(_wrong_values(raw, "", 0))
    if problems:
        raise PortError(
            "\n  - ".join(["the config has values that no model can have:", *problems]),
            where=path,
            fix="take the config that was published with the weights",
        )


def _wrong_values(raw: Mapping[str, Any], prefix: str, depth: int) -> Iterator[str]:
    for name, value in raw.items():
        # What is not a number is left to the library: some models have a list with one
        # for each layer.
        if isinstance(value, int | float):
            # A part of a model may have none of something.
            yield from _wrong_number(name, value, prefix, smallest=0 if prefix else 1)
        elif _EPSILON.search(name) and isinstance(value, str | list):
            yield f"{prefix}{name} is {value!r:.60}, and not a number from 0 up"
        elif name in _ROTARY and isinstance(value, Mapping):
            yield from _wrong_rotary(value, f"{prefix}{name}.")
        elif isinstance(value, Mapping) and depth < _LARGEST_DEPTH:
            yield from _wrong_values(value, f"{prefix}{name}.", depth + 1)
    padding: Any = raw.get("pad_token_id")
    vocabulary: Any = raw.get("vocab_size")
    # Old configs have -1 for none.
    if (
        is_whole(padding)
        and is_whole(vocabulary)
        and not -1 <= padding < max(vocabulary, 1)
    ):
        yield f"{prefix}pad_token_id is {padding}, outside the vocabulary of {vocabulary}"


def _wrong_number(name: str, value: float, prefix: str, smallest: int) -> Iterator[str]:
    if name in _SIZES and not (is_whole(value) and smallest <= value <= _SIZES[name]):
        yield f"{prefix}{name} is {value!r}, and not a whole number from {smallest} to {_SIZES[name]:,}"
    elif name.endswith("layers") and value > _MOST_LAYERS:
        yield f"{prefix}{name} is {value!r}, and no model has more than {_MOST_LAYERS:,}"
    elif _EPSILON.search(name) and not 0 <= value < math.inf:
        yield f"{prefix}{name} is {value!r}, and not a number from 0 up"
    elif name == "rope_theta" and not 0 < value < math.inf:
        yield f"{prefix}{name} is {value!r}, and not a number above 0"


def _wrong_rotary(settings: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            # Those of a kind of layer.
            yield from _wrong_rotary(value, f"{prefix}{name}.")
        elif (
            name in ("rope_theta", "factor")
            and isinstance(value, int | float)
            and not 0 < value < math.inf
        ):
            yield f"{prefix}{name} is {value!r}, and not a number above 0"


def is_whole(value: Any) -> bool:
    """Whether this is a whole number, which True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_heads(config: Any, path: str) -> None:
    """PortError unless a language model's key/value heads divide its query heads."""
    heads: Any = getattr(config, "num_attention_heads", None)
    groups: Any = getattr(config, "num_key_value_heads", None)
    # Numbers that are not counts are reported where the model is built.
    if not all(map(_is_count, (heads, groups))) or heads % groups == 0:
        return
    raise PortError(
        f"num_attention_heads={heads} is not a multiple of num_key_value_heads={groups}", where=path,
        fix="each key/value head serves as many query heads as the others: correct one of the two",
    )  # fmt: skip


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value > 0


@contextlib.contextmanager
def name_wrong_fields(raw: Mapping[str, Any], path: str, what: str) -> Iterator[None]:
    """Turn an error that a library's code raises inside into a PortError that names the
    fields with strange values.

    Args:
        raw: the config's values; path: of its file.
        what: the beginning of the message: "transformers refuses the config".
    """
    try:
        yield
    except PortError as error:
        # An error that says what to do knows more than the config's values show.
        if error.fix is not None:
            raise
        raise PortError(error.what, where=error.where, fix=_fix(raw)) from error
    except Exception as error:
        message = f"{type(error).__name__}: {first_line(error)}"
        # The hub's validation errors begin with the name of their class, and have the
        # reason in a second line.
        if type(error).__module__.startswith("huggingface_hub"):
            message = " ".join(map(str.strip, str(error).splitlines()[:2]))
        raise PortError(f"{what}: {message}", where=path, fix=_fix(raw)) from error


def _fix(raw: Mapping[str, Any]) -> str:
    wrong = ", ".join(_wrong_counts(raw))
    if not wrong:
        return "correct the config: the model's class does not accept these values"
    return f"{wrong}: give a whole number above 0"


def _wrong_counts(raw: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Fields, at any depth, that count something and are not whole numbers above 0."""
    for name, value in raw.items():
        if isinstance(value, Mapping):
            yield from _wrong_counts(value, f"{prefix}{name}.")
        elif _COUNTS.search(name) and _is_wrong_count(value):
            yield f"{prefix}{name} is {value!r}"


def _is_wrong_count(value: Any) -> bool:
    match value:
        case bool():
            return False
        case int():
            return value < 1
        # A number in quotes: a word is the name of something.
        case str():
            return value.strip("-").isdigit()
    return False
