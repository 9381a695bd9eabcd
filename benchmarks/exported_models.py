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
        lineage = [name]
        for ancestor in lineage:
            bases, _ = definitions.get(ancestor, ((), ""))
            lineage += [base for base in bases if base not in lineage]
        return lineage

    def is_model(name: str) -> bool:
        lineage = ancestors(name)
        if name not in definitions or _ROOTS[library] not in lineage:
            return False
        runs = any("def forward(" in definitions[parent][1] for parent in lineage if parent in definitions)
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
        definition = _DEFINITION.match(text)
        # Libraries have another class of a name that tells of packages which are not installed.
        if definition and "DummyObject" not in definition[2]:
            yield definition[1], re.findall(r"\w+", definition[2]), text
