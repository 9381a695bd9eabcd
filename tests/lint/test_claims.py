"""The findings in models that are known to trace, and in one that is known not to."""

import importlib.util
from pathlib import Path

import pytest

from tpuport.lint.analysis import Analyser, Options
from tpuport.lint.engine import Run, lint_paths
from tpuport.lint.findings import Severity
from tpuport.lint.rules import all_rules
from tpuport.lint.run_report import Report
from tpuport.lint.source import read


def installed(library: str, name: str) -> Path:
    """A file of an installed library, found without importing it."""
    spec = importlib.util.find_spec(library)
    assert spec
    assert spec.origin
    return Path(spec.origin).parent / name


def lint(path: Path) -> Report:
    return lint_paths([path], run=Run(cache=False))


# These run under jax.jit as they are: tests elsewhere run them.
TRACED = ("cohere", "deepseek_v3", "gemma3", "gpt2", "gpt_oss", "llama", "mixtral", "qwen3")
RELATIVES = (
    "gemma", "gemma2", "glm4", "gpt_neox", "granite", "mistral", "olmo2", "phi3", "qwen2", "qwen3_moe", "smollm3",
    "starcoder2",
)  # fmt: skip


@pytest.fixture(scope="module")
def analyser() -> Analyser:
    """One analyser for all models: it reads the modules that they share only once."""
    return Analyser(Options(all_rules()))


@pytest.mark.parametrize(
    "model", [*TRACED, *(pytest.param(name, marks=pytest.mark.slow) for name in RELATIVES)]
)
def test_text_models_have_nothing_that_stops_the_trace(model: str, analyser: Analyser) -> None:
    path = installed("transformers", f"models/{model}/modeling_{model}.py")
    outcome = analyser.analyse(read(path, str(path)))
    assert [
        finding for finding in outcome.findings if finding.path == str(path) and finding.stops_trace
    ] == []
    # The analysis has reached them: the classes are entry points, and their parts are traced.
    assert outcome.entry_points > 5
    assert len(outcome.traced) > 20


def test_a_text_model_is_expected_to_trace() -> None:
    report = lint(installed("transformers", "models/qwen2/modeling_qwen2.py"))
    assert report.expected_to_trace
    assert report.verdict().startswith("Expected to trace")


def test_what_stops_hunyuan_video_is_named_and_nothing_else() -> None:
    path = installed("diffusers", "models/transformers/transformer_hunyuan_video15.py")
    lines = path.read_text(encoding="utf-8").split("\n")
    report = lint(path)
    errors = [finding for finding in report.findings if finding.severity == Severity.ERROR]
    reported = [
        (finding.rule, lines[finding.line - 1][finding.column - 1 : finding.end_column - 1])
        for finding in errors
    ]
    parts = [("image", "image_mask"), ("text_2", "text_mask_2"), ("text", "text_mask")]
    reads = [(f"{what}[{sign}{mask}]") for sign in ("", "~") for what, mask in parts]
    reads += [(f"{mask}[{sign}{mask}]") for sign in ("", "~") for _, mask in parts]
    assert reported == [("TPU205", "is_t2v"), *(("TPU101", read) for read in reads)]
    assert {finding.function for finding in errors} == {"HunyuanVideo15Transformer3DModel.forward"}
    assert lines[errors[0].line - 1].strip() == "if is_t2v:"
    assert not report.expected_to_trace
    # Its assertions and raises are about shapes and options.
    checks = [number for number, line in enumerate(lines, 1) if line.strip().startswith(("assert", "raise"))]
    assert checks
    assert not {finding.line for finding in report.findings} & set(checks)
