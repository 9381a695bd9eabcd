"""Config files as they are on disk, and those of well-known models that come with tpuport. Needs no torch."""

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.topology.reports import known_models
from tpuport.trace_errors import first_line

# A pipeline's index comes first: its directory may have a config.json as well.
_FILES: Final = ("model_index.json", "config.json")
_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")
# What a file of `known` says about itself: whose config it is, the public copies it was compared with number by number,
# and the parameters that the published checkpoint has.
_ABOUT: Final = ("_source", "_checked", "_parameters")
# Numbers of something that a model has at least one of.
_COUNTS: Final = re.compile(
    r"(size|heads|layers|dims?|channels|experts|embeddings|embd|width|groups)$|^(n|d|num)_"
)


@dataclasses.dataclass(frozen=True)
class ConfigFile:
    """A config.

    Attributes:
        raw: its values.
        name: for people; path: of the file, or what identifies it in messages.
        directory: the one that the file is in, with the other files of the model.
    """

    raw: dict[str, Any]
    name: str
    path: str
    directory: Path


def known() -> tuple[str, ...]:
    """The names of the models whose configs come with tpuport."""
    return known_models.names()


def find_config(target: str) -> ConfigFile:
    """The config that `target` names: a directory, a file, or one of `known`.

    Raises:
        PortError: there is none, or it is not JSON.
    """
    path = Path(target)
    if path.is_dir():
        return _config_in(path)
    if path.is_file():
        name = path.stem
        # The libraries' own names for their files say nothing of the model.
        if path.name in _FILES:
            name = path.resolve().parent.name
        # What is in one of these is read when the model is built.
        if path.suffix == ".gguf":
            return ConfigFile({}, name, str(path), path.parent)
        return ConfigFile(read_json(path), name, str(path), path.parent)
    name = target.lower()
    if name not in known():
        raise _missing(target)
    file = known_models.KNOWN / f"{name}.json"
    raw = json.loads(file.read_text(encoding="utf-8"))
    for field in _ABOUT:
        del raw[field]
    return ConfigFile(raw, name, file.name, file.parent)


def _config_in(directory: Path) -> ConfigFile:
    for name in _FILES:
        file = directory / name
        if file.is_file():
            return ConfigFile(read_json(file), directory.resolve().name, str(file), directory)
    raise PortError(
        "there is no config.json", where=str(directory),
        fix="give the directory of a transformers or diffusers model, or of a pipeline with a model_index.json",
    )  # fmt: skip


def _missing(target: str) -> PortError:
    hint = known_models.hint(target)
    if _HUB_ID.fullmatch(target) and not target.startswith("."):
        fetch = f"`hf download {target} config.json --local-dir DIR`, then give DIR"
        fix = f"{hint}; others are not downloaded here: {fetch}"
    else:
        fix = f"a path, or a module:function; {hint}"
    return PortError("there is no such file or directory", where=target, fix=fix)


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file.

    Raises:
        PortError: there is none; the message names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PortError(f"the file cannot be read: {error}", where=str(path)) from error
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        what = f"this is not JSON: {error.msg}" if text.strip() else "the file is empty"
        where = f"{path}:{error.lineno}"
        raise PortError(what, where=where, fix="give a model's config.json, whole") from error
    if not isinstance(raw, dict):
        raise PortError("this is JSON, but not an object", where=str(path), fix="give a model's config.json")
    return raw


def check_heads(config: Any, config_file: ConfigFile) -> None:
    """PortError unless a language model's key/value heads divide its query heads."""
    heads: Any = getattr(config, "num_attention_heads", None)
    groups: Any = getattr(config, "num_key_value_heads", None)
    # Numbers that are not counts are reported where the model is built.
    if not all(map(_is_count, (heads, groups))) or heads % groups == 0:
        return
    raise PortError(
        f"num_attention_heads={heads} is not a multiple of num_key_value_heads={groups}", where=config_file.path,
        fix="each key/value head serves as many query heads as the others: correct one of the two",
    )  # fmt: skip


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value > 0


@contextlib.contextmanager
def name_wrong_fields(config_file: ConfigFile, what: str) -> Iterator[None]:
    """Turn an error that a library's code raises inside into a PortError that names the fields with strange values.

    Args:
        what: the beginning of the message: "transformers refuses the config".
    """
    try:
        yield
    except PortError as error:
        # An error that says what to do knows more than the config's values show.
        if error.fix is not None:
            raise
        raise PortError(error.what, where=error.where, fix=_fix(config_file.raw)) from error
    except Exception as error:
        message = f"{type(error).__name__}: {first_line(error)}"
        # The hub's validation errors begin with the name of their class.
        if type(error).__module__.startswith("huggingface_hub"):
            message = first_line(error)
        raise PortError(f"{what}: {message}", where=config_file.path, fix=_fix(config_file.raw)) from error


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
