"""Which operators occur in the models of transformers and diffusers, by their names in the source."""

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

LIBRARIES = ("transformers", "diffusers", "timm")
# Code that computes; the rest of a library loads, converts and serves.
_PARTS = re.compile(r"models|schedulers|pipelines|generation|loss|activations")
_CALL = re.compile(r"[\w)\]]\s*\.\s*([a-zA-Z_]\w*)\s*\(")


def installed() -> dict[str, str]:
    """The versions of those libraries that are installed."""
    found = [name for name in LIBRARIES if importlib.util.find_spec(name) is not None]
    return {name: importlib.metadata.version(name) for name in found}


def occurring(operators: Iterable[str]) -> set[str]:
    """Those of the operators whose name is called in the libraries' models, as a function or a method."""
    called: set[str] = set()
    for library in installed():
        for file in _files(library):
            called.update(_CALL.findall(file.read_text(encoding="utf-8", errors="replace")))
    return {name for name in operators if name.partition("[")[0].rpartition(".")[2] in called}


def _files(library: str) -> list[Path]:
    spec = importlib.util.find_spec(library)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    return [path for path in root.rglob("*.py") if _PARTS.search(str(path.relative_to(root)))]
