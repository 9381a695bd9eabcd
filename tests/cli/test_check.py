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


def test_json_and_html(tmp_path: Path) -> None:
    assert main(["check", f"{MODELS}:target", "--format", "json", "--output", str(tmp_path / "a.json")]) == 0
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["ok"]
    assert document["model"] == "Small"
    assert document["findings"] == []
    assert main(["check", f"{MODELS}:target", "--format", "html", "--output", str(tmp_path / "a.html")]) == 0
    assert "runs on the device as in torch" in (tmp_path / "a.html").read_text()


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
    assert main(["check", str(tmp_path), "--length", "6", "--output", str(tmp_path / "a.txt")]) == 0
    assert "input_ids int64[1,6]" in (tmp_path / "a.txt").read_text()
