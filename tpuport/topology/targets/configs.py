"""Config files as they lie on disk, and those of well-known models that come with tpuport."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.topology.reports import known_models

_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")
# What a file of `known` says of itself: whose config it is, the public copies it was compared with number by number,
# and the parameters that the published checkpoint has.
_ABOUT: Final = ("_source", "_checked", "_parameters")


@dataclasses.dataclass(frozen=True)
class Found:
    """A config: its values, the file, and the directory that other files of the model lie in.

    Attributes:
        name: for people; path: of the file, or what stands for it; directory: None for one that tpuport brings.
    """

    raw: dict[str, Any]
    name: str
    path: str
    directory: Path | None


def known() -> tuple[str, ...]:
    """The names of the models whose configs come with tpuport."""
    return known_models.names()


def find(target: str) -> Found:
    """The config that `target` names: a directory, a file, or one of `known`.

    Raises:
        PortError: there is none, or it is no JSON.
    """
    path = Path(target)
    if path.is_dir():
        for name in ("model_index.json", "config.json"):
            if (path / name).is_file():
                return Found(read_json(path / name), path.resolve().name, str(path / name), path)
        raise PortError(
            "there is no config.json", where=target,
            fix="give the directory of a transformers or diffusers model, or of a pipeline with a model_index.json",
        )  # fmt: skip
    if path.is_file():
        plain = path.name in ("config.json", "model_index.json")
        name = path.resolve().parent.name if plain else path.stem
        return Found(read_json(path), name, str(path), path.parent)
    if target.lower() in known():
        file = known_models.KNOWN / f"{target.lower()}.json"
        raw = json.loads(file.read_text(encoding="utf-8"))
        for about in _ABOUT:
            del raw[about]
        return Found(raw, target.lower(), file.name, None)
    raise _missing(target)


def _missing(target: str) -> PortError:
    fix = f"a path, or a module:function; {known_models.hint(target)}"
    if _HUB_ID.fullmatch(target) and not target.startswith("."):
        fetch = f"`hf download {target} config.json --local-dir DIR`, then give DIR"
        fix = f"{known_models.hint(target)}; others are not downloaded here: {fetch}"
    return PortError("there is no such file or directory", where=target, fix=fix)


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file.

    Raises:
        PortError: it is none; says the line.
    """
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        what = f"this is no JSON: {error.msg}" if text.strip() else "the file is empty"
        raise PortError(
            what, where=f"{path}:{error.lineno}", fix="give a model's config.json, whole"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise PortError(f"the file cannot be read: {error}", where=str(path)) from error
    if not isinstance(raw, dict):
        raise PortError("this is JSON, but no object", where=str(path), fix="give a model's config.json")
    return raw
