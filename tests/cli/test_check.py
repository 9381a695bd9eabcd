"""`tpuport check` as a user runs it."""

import json
from pathlib import Path

import pytest

from tpuport.cli import main

MODELS = Path(__file__).parents[1] / "verification" / "small_models.py"


def test_findings_are_reported_with_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{MODELS}:reading_target"]) == 1
    text = capsys.readouterr().out
    assert "TPU205" in text
    assert "verdict: ReadsValues cannot be compiled as it is: 3 things to change" in text


def test_lint_marks_what_a_run_confirms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", str(MODELS), "--no-cache", "--confirm", f"{MODELS}:reading_target"]) == 1
    text = capsys.readouterr().out.partition("on the run of ")[2]
    marks = {line.split()[-2]: line.split()[-1] for line in text.splitlines() if line.startswith("  ")}
    assert {rule: marks[rule] for rule in ("TPU205", "TPU101")} == dict.fromkeys(
        ("TPU205", "TPU101"), "confirmed"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no target was given"),
        ([f"{MODELS}:nothing"], "there is no function 'nothing'"),
        ([f"{MODELS}:seeded"], "failed"),
        ([f"{MODELS}:small_inputs"], "it returned an object of class dict"),
        ([f"{MODELS}:target", "--rules", "rules.json"], "rules are for a mesh"),
    ],
)
def test_what_cannot_run_says_what_to_do(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "fix: " in error


def test_a_config_is_checked_with_random_weights(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "dtype": "float32",
        **sizes,
        **heads,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = tmp_path / "report.json"
    assert main(["check", str(tmp_path), "--length", "6", "--format", "json", "--output", str(report)]) == 0
    document = json.loads(report.read_text())
    assert document["ok"]
    assert (document["model"], document["inputs"]) == ("LlamaForCausalLM", {"input_ids": "int64[1,6]"})
