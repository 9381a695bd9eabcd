"""The JSON document: by its schema, the same for two runs, and without what differs between them."""

import copy
import json
from pathlib import Path

import jsonschema
import pytest

import tpuport
from tpuport.topology.reports import as_json, document
from tpuport.topology.reports.json_schema import schema
from tpuport.topology.whole_runs import Recipe, whole_runs

PUBLISHED = Path(__file__).parents[3] / "docs" / "data" / "compile-schema.json"


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(published)
    return jsonschema.Draft202012Validator(published)


def test_the_published_schema_is_of_this_code() -> None:
    made = json.dumps(schema(), indent=2) + "\n"
    assert PUBLISHED.read_text(encoding="utf-8") == made, (
        "python -m tpuport.topology.reports.json_schema docs/data/compile-schema.json"
    )


def test_documents_are_what_the_schema_says(validator, results, splits) -> None:
    validator.validate(document(results, splits))
    validator.validate(document(results, None))
    [timed, *_] = results
    runs = whole_runs([timed], Recipe(length=128, new_tokens=32))
    validator.validate(json.loads(as_json(document(results, None, runs))))
    validator.validate(json.loads(as_json(document(results, splits))))


@pytest.mark.parametrize(
    "path",
    [
        ("schema",),
        ("results", 0, "report", "memory", "weights"),
        ("results", 0, "report", "collectives", 0, "source", "line"),
        ("results", 0, "report", "attention", 0, "calls"),
        ("results", 0, "report", "fits"),
        ("results", 2, "failure", "remedy"),
        ("suggestion", 0, "mesh"),
    ],
)
def test_a_document_without_a_field_is_refused(validator, results, splits, path: tuple) -> None:
    found = copy.deepcopy(document(results, splits))
    holder = found
    for step in path[:-1]:
        holder = holder[step]
    kept = holder.pop(path[-1])
    assert not validator.is_valid(found)
    holder[path[-1]] = kept
    assert validator.is_valid(found)
    holder["surplus"] = 1
    assert not validator.is_valid(found)


def test_every_field_is_described(validator) -> None:
    missing = [
        f"{name}.{field}"
        for name, one in validator.schema["$defs"].items()
        for field, about in one["properties"].items()
        if "description" not in about and name not in ("Kernel", "Scanned")  # a line says all of these
    ]
    assert missing == ["Finding.unit"], "which `cost` describes"


def test_nothing_that_differs_between_runs(results, splits) -> None:
    first = as_json(document(results, splits))
    for result in results:
        result.seconds["lower"] = 99.5
    assert as_json(document(results, splits)) == first
    assert "99.5" not in first
    found = json.loads(first)
    assert list(found) == ["schema", "tpuport", "results", "suggestion", "runs"]
    assert found["tpuport"] == tpuport.__version__
    assert not {"program", "seconds"} & set(found["results"][0]["report"])


def test_results_can_be_had_without_tracebacks(results, quiet_results) -> None:
    quiet, whole = document(quiet_results), document(results)
    assert quiet["results"][2]["failure"]["traceback"] == ""
    assert quiet["results"][1]["report"]["failure"]["traceback"] == ""
    assert whole["results"][2]["failure"]["traceback"].startswith("Traceback")
    assert results[2].failure["traceback"], "the result itself is as it was"
