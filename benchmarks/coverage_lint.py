"""What `tpuport lint` expects of each model class of a library, without running it."""

import importlib
from pathlib import Path

from tpuport import lint

Expectation = dict[str, str]


def expectations(library: str) -> dict[str, Expectation]:
    """By class: its verdict, "traces" or "stops", and for the latter the first error as the reason."""
    package = Path(str(importlib.import_module(library).__file__)).parent
    report = lint.lint_paths([package / "models"])
    expected: dict[str, Expectation] = {}
    for verdict in report.verdicts:
        if not verdict.errors:
            expected[verdict.name] = {"verdict": "traces"}
            continue
        first = verdict.errors[0]
        place = f"{Path(first.path).name}:{first.line}"
        expected[verdict.name] = {"verdict": "stops", "reason": f"{place} {first.rule} {first.message}"[:300]}
    return expected
