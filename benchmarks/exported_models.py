"""The model classes that transformers and diffusers export.

They are found in the source, as it takes half a minute to import all.
"""

import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

# By library the class that its models derive from.
_ROOTS = {"transformers": "PreTrainedModel", "diffusers": "ModelMixin"}
_DEFINITION = re.compile(r"class (\w+)\(([^)]*)\):")
# Of classes that a library's models derive from.
_BASE_NAME = re.compile("Pre[Tt]rained|ModelMixin")


@functools.cache
def names(library: str) -> tuple[str, ...]:
    """The model classes among a library's public names, without bases that compute nothing."""
    package = importlib.import_module(library)
    definitions = {
        name: (bases, text)
        for path in _sources(Path(str(package.__file__)).parent, set(package._class_to_module.values()))
        for name, bases, text in _definitions(path.read_text(encoding="utf-8"))
    }

    def ancestors(name: str) -> list[str]:
        found = [name]
        for ancestor in found:
            bases, _ = definitions.get(ancestor, ((), ""))
            found += [base for base in bases if base not in found]
        return found

    def is_model(name: str) -> bool:
        line = ancestors(name)
        if name not in definitions or _ROOTS[library] not in line:
            return False
        runs = any("def forward(" in definitions[parent][1] for parent in line if parent in definitions)
        return runs or not _BASE_NAME.search(name)

    return tuple(sorted(filter(is_model, package._class_to_module)))


def _sources(root: Path, modules: set[str]) -> Iterator[Path]:
    """The files of a library's modules; of packages, which export what is in them, all."""
    for module in sorted(modules):
        path = root.joinpath(*module.split("."))
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def _definitions(source: str) -> Iterator[tuple[str, list[str], str]]:
    """Of each class in a file its name, its bases, and its text."""
    for text in re.split(r"^(?=class )", source, flags=re.MULTILINE):
        found = _DEFINITION.match(text)
        # Libraries have another class of a name that tells of packages which are not installed.
        if found and "DummyObject" not in found[2]:
            yield found[1], re.findall(r"\w+", found[2]), text
