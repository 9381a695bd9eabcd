"""What `tpuport lint` expects of each model class of a library, without running it."""

import contextlib
import importlib
import re
from pathlib import Path

from tpuport import lint
from tpuport.lint.entry_verdicts import EntryVerdict
from tpuport.patches import registry

Expectation = dict[str, str]

# From these, transformers generates the files that are imported.
_NEVER_IMPORTED = "modular_*.py"
# These call the original unless `generate` has looked at the images.
_ONLY_IN_GENERATE = "tpuport.patches.transformers_images:"
# Ported models have the tables that its wrappers would compute in a call.
_PREPARED = "transformers.modeling_rope_utils:dynamic_rope_update"


def expectations(library: str) -> dict[str, Expectation]:
    """By class: its verdict, "traces", "some calls" or "stops", and for the others the first error as the reason.

    What tpuport's patches replace is not traced. Of a class with "some calls", only those stop that the reason
    names: with an optional argument, or a step with a static cache, without which `tpuport.generate` recomputes.
    """
    package = Path(str(importlib.import_module(library).__file__)).parent
    _import_copies(package, library)
    settings = lint.Settings(exclude=(_NEVER_IMPORTED,), patched=patched_everywhere())
    report = lint.lint_paths([package / "models"], settings)
    return {verdict.name: expectation(verdict) for verdict in report.verdicts}


def _import_copies(package: Path, library: str) -> None:
    """Import the modules of a library that define a function of a patched name, so that patches find their copies."""
    names = {status.patch.qualname.rpartition(".")[2] for status in registry.statuses()} - {
        "forward",
        "__call__",
    }
    is_definition = re.compile(rf"^\s*def (?:{'|'.join(names)})\(", re.MULTILINE)
    for file in (package / "models").rglob("*.py"):
        if not file.match(_NEVER_IMPORTED) and is_definition.search(file.read_text()):
            # Processors want packages that are not installed here.
            with contextlib.suppress(ImportError):
                importlib.import_module(".".join((library, *file.relative_to(package).with_suffix("").parts)))


def patched_everywhere() -> tuple[str, ...]:
    """The functions that patches replace in every traced call: their targets, and copies that have been imported."""
    statuses = [
        status for status in registry.statuses() if not status.patch.replacement.startswith(_ONLY_IN_GENERATE)
    ]
    places = {place for status in statuses for place in (status.patch.target, *status.places)}
    return (*sorted(places), _PREPARED)


def expectation(verdict: EntryVerdict) -> Expectation:
    """The verdict on a class in words, with the error that decides it."""
    if not verdict.errors:
        return {"verdict": "traces"}
    always = [error for error in verdict.errors if not error.scenario]
    first = (always or verdict.errors)[0]
    reason = f"{Path(first.path).name}:{first.line} {first.rule} {first.message}"[:300]
    return {"verdict": "stops" if always else "some calls", "reason": reason}
