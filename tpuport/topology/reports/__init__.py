"""Reports as people and programs read them: as text, as a page, and as the JSON that
`json_schema` describes.

They are made of the plain values of `Report.to_dict`, so that showing a report needs
neither torch nor jax.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from tpuport.topology.compile_messages import CompileResult
from tpuport.version import __version__

# The version of the whole document; `Report.to_dict` has its own.
SCHEMA: Final = 1


def document(
    results: Sequence[CompileResult],
    splits: Sequence[dict[str, Any]] | None = None,
    runs: Sequence[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """What `tpuport compile --format json` prints: the same values for every run.

    Args:
        results: in the order of the request.
        splits: as `SplitOutcome.to_dict` gives them, the best first; None if no
            suggestion was requested.
        runs: as `whole_runs` gives them; None if none was requested.
    """
    return {
        "schema": SCHEMA,
        "tpuport": __version__,
        "results": [
            {
                "target": result.target,
                "topology": result.topology,
                "notes": list(result.notes),
                "report": result.report,
                "failure": result.failure,
                "trace": result.trace,
            }
            for result in results
        ],
        "suggestion": splits,
        "runs": runs,
    }


def as_json(document: dict[str, Any]) -> str:
    """The document as text. It has no number that JSON lacks, such as infinity."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
