"""Which operators occur in the models of transformers, diffusers and timm, by the names that their sources call.

    python -m benchmarks.operator_usage     note the names that the installed versions call

The libraries are only read; one that is not installed may be in a folder of PYTHONPATH. The names are stored, so that
the page of operators does not depend on what is installed.
"""

import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

STORED = Path(__file__).resolve().parents[1] / "docs" / "data" / "operator-usage.json"
LIBRARIES = ("transformers", "diffusers", "timm")
# Code that computes; the rest of a library loads, converts and serves.
_PARTS = re.compile(r"models|layers|schedulers|pipelines|generation|loss|activations")
_CALL = re.compile(r"[\w)\]]\s*\.\s*([a-zA-Z_]\w*)\s*\(")


def stored() -> dict[str, Any]:
    """The libraries' versions, and for each library the operators' names that its models call."""
    return json.loads(STORED.read_text(encoding="utf-8"))


def occurring(operators: Iterable[str]) -> set[str]:
    """Those of the operators whose name is called in the libraries' models, as a function or a method."""
    called = {name for names in stored()["names"].values() for name in names}
    return {name for name in operators if _last_name(name) in called}


def _last_name(operator: str) -> str:
    return operator.partition("[")[0].rpartition(".")[2]


def collect(operators: Sequence[str]) -> dict[str, Any]:
    """What `stored` gives, from the installed libraries."""
    names = {_last_name(operator) for operator in operators}
    return {
        "versions": {library: importlib.metadata.version(library) for library in LIBRARIES},
        "names": {library: sorted(names & _called(library)) for library in LIBRARIES},
    }


def _called(library: str) -> set[str]:
    called: set[str] = set()
    for file in _files(library):
        called.update(_CALL.findall(file.read_text(encoding="utf-8", errors="replace")))
    return called


def _files(library: str) -> list[Path]:
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{library} is not installed")
    root = Path(spec.origin).parent
    return [path for path in root.rglob("*.py") if _PARTS.search(str(path.relative_to(root)))]


def main() -> None:
    from benchmarks.operator_samples import database

    text = json.dumps(collect(list(database())), indent=1)
    STORED.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
