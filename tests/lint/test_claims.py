"""What the linter says of models that are known to trace, and of one that is known not to."""

import importlib.util
from pathlib import Path

import pytest

from tpuport.lint.engine import Run, lint_paths
from tpuport.lint.findings import Severity
from tpuport.lint.run_report import Report


def installed(library: str, name: str) -> Path:
    """A file of an installed library, found without importing it."""
    spec = importlib.util.find_spec(library)
    assert spec
    assert spec.origin
    return Path(spec.origin).parent / name


def lint(path: Path) -> Report:
    return lint_paths([path], run=Run(cache=False))


# These run under jax.jit as they are: tests elsewhere run them.
TRACED = (
    "cohere", "deepseek_v3", "gemma", "gemma2", "gemma3", "glm4", "gpt2", "gpt_neox", "gpt_oss", "granite", "llama",
    "mistral", "mixtral", "olmo2", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3", "starcoder2",
)  # fmt: skip


@pytest.mark.parametrize("model", TRACED)
def test_text_models_are_expected_to_trace(model: str) -> None:
    report = lint(installed("transformers", f"models/{model}/modeling_{model}.py"))
    assert [one for one in report.findings if one.severity == Severity.ERROR and one.stops] == []
    assert report.expected_to_trace
    assert report.verdict().startswith("Expected to trace")
    # It has looked: the classes are entry points, and their parts are reached.
    assert report.entry_points > 5
    assert report.traced > 20


def test_what_stops_hunyuan_video_is_named_and_nothing_else() -> None:
    path = installed("diffusers", "models/transformers/transformer_hunyuan_video15.py")
    lines = path.read_text(encoding="utf-8").split("\n")
    report = lint(path)
    errors = [one for one in report.findings if one.severity == Severity.ERROR]
    told = [(one.rule, lines[one.line - 1][one.column - 1 : one.end_column - 1]) for one in errors]
    parts = [("image", "image_mask"), ("text_2", "text_mask_2"), ("text", "text_mask")]
    reads = [(f"{what}[{sign}{mask}]") for sign in ("", "~") for what, mask in parts]
    reads += [(f"{mask}[{sign}{mask}]") for sign in ("", "~") for _, mask in parts]
    assert told == [("TPU205", "is_t2v"), *(("TPU101", read) for read in reads)]
    assert {one.function for one in errors} == {"HunyuanVideo15Transformer3DModel.forward"}
    assert lines[errors[0].line - 1].strip() == "if is_t2v:"
    assert not report.expected_to_trace
    # Its assertions and raises are about shapes and options.
    checks = [number for number, line in enumerate(lines, 1) if line.strip().startswith(("assert", "raise"))]
    assert checks
    assert not {one.line for one in report.findings} & set(checks)
