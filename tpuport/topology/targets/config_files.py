"""Config files as they are on disk, and those of well-known models that come with
tpuport. Needs no torch.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.libraries.config_values import read_json
from tpuport.topology.reports import known_models

# A pipeline's index comes first: its directory may have a config.json as well.
_FILES: Final = ("model_index.json", "config.json")
_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")
# What a file of `known` says about itself: whose config it is, the public copies it was
# compared with number by number, and the parameters that the published checkpoint has.
_ABOUT: Final = ("_source", "_checked", "_parameters")


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
            return ConfigFile(
                read_json(file), directory.resolve().name, str(file), directory
            )
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
