"""What tiny models of the libraries' classes gave beside torch, as
`benchmarks.coverage` measured it.

`python -m benchmarks.coverage` writes the data, together with the page "Models beside
torch" of the documentation.
"""

import dataclasses
import functools
import importlib.resources
import json
import logging
from typing import Any

from tpuport.libraries.library_classes import is_pipeline

logger = logging.getLogger(__name__)

# A model with one of these gives no result, or a wrong one.
_FAILURES = frozenset({"different", "raw error", "crashed"})
_CALL = "forward"


@dataclasses.dataclass(frozen=True)
class ModelResult:
    """What a class did.

    Attributes:
        library, version: "transformers" or "diffusers", and which one was measured.
        class_name: of the model.
        module: the module that defines it, below the library; its folder is the model's
            type in transformers.
        verdicts: by check ("forward", "mesh", "generate", ...) "equal", "different",
            "refused", "raw error", "crashed", "torch fails" or "not compared"; empty if
            no small model of this class could be built.
        reason: why the worst verdict is not "equal", or "".
    """

    library: str
    version: str
    class_name: str
    module: str
    verdicts: dict[str, str]
    reason: str = ""

    @property
    def model_type(self) -> str:
        """The type of the model in transformers, such as "llama"; "" in diffusers."""
        match self.module.split("."):
            case ["models", folder, _] if self.library == "transformers":
                return folder
        return ""

    @property
    def fails(self) -> bool:
        """Whether it is known to give a wrong result or none."""
        return (
            bool(_FAILURES & set(self.verdicts.values()))
            or self.verdicts.get(_CALL) == "refused"
        )

    def describe(self) -> str:
        """One line: each check with its verdict, and the reason."""
        if not self.verdicts:
            return "not measured: no small model of this class is known"
        text = ", ".join(
            f"{check} {verdict}" for check, verdict in self.verdicts.items()
        )
        if self.reason:
            text += f" ({self.reason})"
        return text


@functools.cache
def all_results() -> list[ModelResult]:
    """All that were measured, by library and class."""
    file = importlib.resources.files("tpuport.libraries").joinpath("model_results.json")
    stored = json.loads(file.read_text(encoding="utf-8"))
    return [
        ModelResult(**{"version": stored["versions"][record["library"]], **record})
        for record in stored["models"]
    ]


def results_named(name: str) -> list[ModelResult]:
    """The results of a class, or of all classes of a type of transformers, such as
    "llama".
    """
    lower = name.lower().replace("-", "_")
    return [
        result
        for result in all_results()
        if result.class_name == name
        or (result.model_type and result.model_type == lower)
    ]


def warn_of_failures(model: Any) -> None:
    """Warn of a model, or the models of a pipeline, whose class is known to fail in
    these libraries.
    """
    models = model.components.values() if is_pipeline(model) else [model]
    for component in models:
        result = _result_of(type(component))
        if result is None or not result.fails:
            continue
        logger.warning(
            "%s is known not to give what torch gives, as measured with %s %s: %s",
            result.class_name,
            result.library,
            result.version,
            result.describe(),
        )


def _result_of(cls: type) -> ModelResult | None:
    """The result of a class of the libraries; nothing is known of classes derived from
    them.
    """
    library = cls.__module__.partition(".")[0]
    return _results_by_name().get((library, cls.__name__))


@functools.cache
def _results_by_name() -> dict[tuple[str, str], ModelResult]:
    return {(result.library, result.class_name): result for result in all_results()}
