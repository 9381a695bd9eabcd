"""The batch recipe's manifests are what the schedulers take, and their commands are the recipe's own."""

import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from recipes.batch.__main__ import parse_arguments

RECIPE = Path(__file__).resolve().parents[2] / "recipes/batch"
SCHEMAS = Path(__file__).parent / "schemas"


def _read(name: str) -> tuple[Any, jsonschema.Draft202012Validator]:
    """A manifest, and the validator of its kind."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    [path] = RECIPE.glob(f"{name}.*")
    return yaml.safe_load(path.read_text()), jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", ["jobset", "queued_resource"])
def test_a_manifest_is_valid(name: str) -> None:
    manifest, validator = _read(name)
    validator.validate(manifest)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("jobset", ["apiVersion"], "jobset.x-k8s.io/v1"),
        ("jobset", ["spec", "failurePolicy", "maxRestart"], 3),
        ("jobset", ["spec", "replicatedJobs", 0, "replicas"], "1"),
        ("jobset", ["spec", "replicatedJobs", 0, "template", "spec", "completionMode"], "indexed"),
        ("jobset", ["spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "image"], "x"),
        ("queued_resource", ["tpu", "nodeSpec", 0, "node", "state"], "READY"),
        ("queued_resource", ["tpu", "nodeSpec", 0, "node", "metadata", "startup-script"], 3),
        ("queued_resource", ["spot"], True),
    ],
)
def test_mistakes_are_not(name: str, path: list[Any], value: Any) -> None:
    manifest, validator = _read(name)
    parent = manifest
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(manifest)


def test_the_commands_are_those_of_the_recipe() -> None:
    jobset, _ = _read("jobset")
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    container = job["template"]["spec"]["containers"][0]
    assert container["command"] == ["python", "-m", "recipes.batch"]
    queued, _ = _read("queued_resource")
    script = queued["tpu"]["nodeSpec"][0]["node"]["metadata"]["startup-script"]
    words = shlex.split(script.partition("-m recipes.batch")[2].partition(";")[0])
    for arguments in (container["args"], words):
        parsed = parse_arguments(arguments)
        assert (parsed.together, parsed.tp, parsed.dp) == (True, 4, -1)
    # Four hosts with four chips each.
    rows, columns = job["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    chips = job["completions"] * container["resources"]["limits"]["google.com/tpu"]
    assert chips == int(rows) * int(columns) == 16
    assert queued["tpu"]["nodeSpec"][0]["node"]["acceleratorType"] == f"v5litepod-{chips}"
