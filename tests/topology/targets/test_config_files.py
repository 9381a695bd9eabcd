"""Configs that no model can be built with: the field is named, and the library refuses it itself."""

import pytest
import transformers

from tpuport.errors import PortError
from tpuport.topology.abstract_weights import build_model
from tpuport.topology.targets import resolve

LLAMA = {
    "vocab_size": 64, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 6,
    "num_key_value_heads": 2,
}  # fmt: skip


def refused(target: str) -> PortError:
    """What reading the config or building its model raises."""
    try:
        for one in resolve(target):
            build_model(one.build)
    except PortError as error:
        return error
    raise AssertionError("it was built")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("hidden_size", -24, "cannot be built: RuntimeError: "),
        ("hidden_size", "24", "refuses the config: Validation error for field 'hidden_size': TypeError: "),
        ("num_attention_heads", 0, "refuses the config: ZeroDivisionError: "),
        ("vocab_size", -64, "cannot be built: RuntimeError: "),
    ],
)
def test_the_field_is_named(tmp_path, tiny, field, value, said) -> None:
    changed = LLAMA | {field: value}
    with pytest.raises(Exception) as library:
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**changed))  # type: ignore[arg-type]
    error = refused(tiny.write(tmp_path, {"model_type": "llama"} | changed))
    assert said in error.what
    assert str(library.value).strip().splitlines()[0] in error.what
    assert "\n" not in error.what
    assert error.where == str(tmp_path / "config.json")
    assert f"{field} is {value!r}" in (error.fix or "")


def test_heads_that_cannot_be_shared_out_are_refused_before_a_model_is_built(tmp_path, tiny) -> None:
    target = tiny.write(tmp_path, {"model_type": "llama"} | LLAMA | {"num_key_value_heads": 4})
    with pytest.raises(
        PortError, match="num_attention_heads=6 is not a multiple of num_key_value_heads=4"
    ) as raised:
        resolve(target)
    assert raised.value.where == str(tmp_path / "config.json")
    nested = {"model_type": "gemma3", "text_config": LLAMA | {"num_key_value_heads": 4, "head_dim": 8}}
    with pytest.raises(PortError, match="is not a multiple of num_key_value_heads=4"):
        resolve(tiny.write(tmp_path / "nested", nested))


def test_a_field_of_diffusers_is_named(tmp_path, tiny) -> None:
    raw = tiny.settings("AutoencoderKL", norm_num_groups=0)
    error = refused(tiny.write(tmp_path, raw))
    assert error.what.startswith("AutoencoderKL cannot be built: ")
    assert "norm_num_groups is 0" in (error.fix or "")


def test_a_model_that_refuses_for_another_reason_is_quoted(tmp_path, tiny) -> None:
    raw = {"model_type": "bert", "hidden_size": 30, "num_attention_heads": 4, "num_hidden_layers": 1}
    error = refused(tiny.write(tmp_path, raw))
    assert "not a multiple of the number of attention" in error.what
    assert error.fix


@pytest.mark.parametrize(("text", "said"), [("", "the file is empty"), ("root:x:0:0\n", "this is not JSON")])
def test_what_is_no_config_is_told_with_what_would_be(tmp_path, text, said) -> None:
    (tmp_path / "config.json").write_text(text)
    error = refused(str(tmp_path))
    assert error.what.startswith(said)
    assert error.where == f"{tmp_path / 'config.json'}:1"
    assert "config.json" in (error.fix or "")
