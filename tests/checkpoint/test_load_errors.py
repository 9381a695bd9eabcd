"""What is refused: every problem in one error, before device memory is taken or a weight is read."""

import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BartConfig, BartForConditionalGeneration, LlamaForCausalLM

from tpuport import PortError
from tpuport.checkpoint import load


@pytest.fixture(autouse=True)
def no_weight_is_read(request, monkeypatch):
    if "reads" not in request.fixturenames:
        monkeypatch.setattr(os, "preadv", None)


@pytest.fixture
def reads():
    """Marks a test that does load in the end."""


def change(directory, edit):
    path = directory / "model.safetensors"
    weights = load_file(path)
    edit(weights)
    save_file(weights, path, {"format": "pt"})


def edit_config(directory, **fields):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def refusal(directory, model_class=AutoModelForCausalLM, **options):
    with pytest.raises(PortError) as caught:
        load(model_class, directory, **options)
    return str(caught.value)


def test_everything_wrong_with_the_tensors_is_listed_at_once(saved):
    def edit(weights):
        del weights["model.norm.weight"]
        weights["model.layers.0.mlp.up_proj.weight"] = torch.zeros(3, 3)
        weights["model.layers.9.mlp.up_proj.weight"] = torch.zeros(3, 3)

    _, directory = saved("llama")
    change(directory, edit)
    message = refusal(directory)
    assert "1 missing tensor:\n    model.norm.weight" in message
    assert "1 unexpected tensor:\n    model.layers.9.mlp.up_proj.weight" in message
    assert "model.layers.0.mlp.up_proj.weight: [3, 3] in the checkpoint, [48, 32] in the model" in message
    assert str(directory) in message


def test_a_pattern_given_alone_is_one_pattern(saved):
    _, directory = saved("llama")
    change(directory, lambda w: w.update({"junk.a": torch.zeros(2), "other.b": torch.zeros(2)}))
    for allow in ("junk.*", ["junk.*"]):
        message = refusal(directory, allow=allow)
        assert "1 unexpected tensor:\n    other.b" in message
        assert "junk" not in message


def test_files_and_tensors_are_reported_together(saved):
    _, directory = saved("llama", max_shard_size="20KB")
    first, second, third, *_ = sorted(directory.glob("*.safetensors"))
    in_second, in_third = list(load_file(second)), list(load_file(third))
    first_weights = load_file(first)
    first_weights["stray"] = torch.zeros(1)
    save_file(first_weights, first)
    second.unlink()
    third.write_bytes(third.read_bytes()[:-5])
    message = refusal(directory)
    assert f"the index names {second.name}, which is not there" in message
    assert f"{third.name}: truncated" in message
    assert "1 unexpected tensor:\n    stray" in message
    assert "missing tensors" not in message
    assert not any(name in message for name in in_second + in_third)


def test_half_of_an_expert_is_named(saved):
    _, directory = saved("mixtral")
    gone = "model.layers.1.block_sparse_moe.experts.2.w1.weight"
    change(directory, lambda weights: weights.pop(gone))
    message = refusal(directory)
    assert "model.layers.1.mlp.experts.gate_up_proj cannot be made from" in message


@pytest.mark.usefixtures("reads")
def test_an_unexpected_tensor_can_be_allowed(saved):
    _, directory = saved("llama")
    change(directory, lambda weights: weights.update({"extra.0": torch.zeros(1), "extra.1": torch.zeros(1)}))
    assert "allow=" in refusal(directory)
    assert "extra.1" in refusal(directory, allow=("extra.0",))
    load(AutoModelForCausalLM, directory, allow=("extra.*",))


def test_many_names_are_cut_and_counted(saved):
    _, directory = saved("llama")
    change(directory, lambda weights: weights.update({f"extra.{i}": torch.zeros(1) for i in range(150)}))
    message = refusal(directory)
    assert "150 unexpected tensors" in message
    assert "and 50 more" in message


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file(keep, saved):
    _, directory = saved("llama")
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    message = refusal(directory)
    assert "model.safetensors: truncated" in message
    assert "missing" not in message


@pytest.mark.parametrize("damage", ["header", "type", "sizes", "longer", "offsets"])
def test_a_corrupt_file(damage, tmp_path, saved):
    _, directory = saved("llama")
    path = directory / "model.safetensors"
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    if damage == "type":
        entry["dtype"] = "F4"
    if damage == "sizes":
        entry["shape"] = [3]
    if damage == "offsets":
        del entry["data_offsets"]
    header = b"not json" if damage == "header" else json.dumps({"a": entry}).encode()
    data = b"\0" * (9 if damage == "longer" else 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    expected = {"type": "F4", "longer": "corrupt: "}.get(damage, "corrupt")
    assert expected in refusal(directory)


def test_an_index_that_is_not_one_or_leaves_the_directory(saved):
    _, directory = saved("llama", max_shard_size="20KB")
    index = directory / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = "../elsewhere.safetensors"
    index.write_text(json.dumps(content))
    assert "'../elsewhere.safetensors', which is not a file of this directory" in refusal(directory)
    index.write_text("[]")
    assert "not a weight index" in refusal(directory)


def test_an_index_that_promises_too_much(saved):
    _, directory = saved("llama", max_shard_size="20KB")
    index = directory / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    file = content["weight_map"].pop("model.norm.weight")
    other = next(name for name in content["weight_map"].values() if name != file)
    content["weight_map"]["model.norm.weights"] = other
    index.write_text(json.dumps(content))
    assert f"promises tensors that {other} does not hold: model.norm.weights" in refusal(directory)


def test_pickled_weights_are_refused(saved):
    original, directory = saved("llama")
    (directory / "model.safetensors").unlink()
    assert "no weights" in refusal(directory)
    empty = directory / "empty"
    empty.mkdir()
    message = refusal(empty)
    assert message.startswith("the checkpoint cannot be loaded, for 2 reasons:\n  - no weights")
    assert message.count("where:") == message.count("fix:") == 1
    torch.save(original.state_dict(), directory / "pytorch_model.bin")
    message = refusal(directory)
    assert "only pickled weights (pytorch_model.bin)" in message
    assert "save_pretrained" in message
    (directory / "config.json").unlink()
    message = refusal(directory)
    assert "only pickled weights" in message
    assert "no config.json" in message


@pytest.mark.parametrize("method", ["quip", "hqq", "aqlm"])
def test_a_quantised_checkpoint_is_named(method, saved):
    _, directory = saved("llama")
    edit_config(directory, quantization_config={"quant_method": method, "bits": 4})
    assert f"quantised ({method})" in refusal(directory)


def test_directories_that_are_not_there(tmp_path, saved):
    assert "hf download meta-llama/Llama-2-7b-hf" in refusal("meta-llama/Llama-2-7b-hf")
    assert "check the path" in refusal(tmp_path / "typo")
    _, directory = saved("llama")
    assert "this is a file" in refusal(directory / "config.json")
    (directory / "config.json").write_text("{")
    assert "this is not JSON" in refusal(directory)


def test_classes_that_do_not_fit(saved):
    _, directory = saved("llama")
    assert "not a model class" in refusal(directory, model_class=lambda: None)
    assert "not a model class" in refusal(directory, model_class=torch.nn.Linear)
    edit_config(directory, model_type="no-such-model")
    assert "no-such-model" in refusal(directory)


def test_a_dtype_that_a_model_cannot_have(saved):
    _, directory = saved("llama")
    assert "int8" in refusal(directory, dtype=torch.int8)
    assert "bfloat61" in refusal(directory, dtype="bfloat61")


CODE = """
import pathlib, torch
pathlib.Path(__file__).with_name("ran").touch()
from transformers import PretrainedConfig, PreTrainedModel

class OwnConfig(PretrainedConfig):
    model_type = "own"

class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(2, 3)
        self.post_init()
"""


@pytest.mark.usefixtures("reads")
def test_code_in_a_checkpoint_runs_only_when_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
    directory = tmp_path / "own"
    directory.mkdir()
    (directory / "modeling_own.py").write_text(CODE)
    config = {"model_type": "own", "auto_map": {
        "AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}}  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    save_file(
        {"layer.weight": torch.ones(3, 2), "layer.bias": torch.zeros(3)}, directory / "model.safetensors"
    )
    assert "trust_remote_code=True" in refusal(directory)
    assert not list(tmp_path.rglob("ran"))
    model = load(AutoModelForCausalLM, directory, trust_remote_code=True)
    assert type(model).__name__ == "OwnModel"
    assert list(tmp_path.rglob("ran"))
    config["auto_map"]["AutoConfig"] = "someone/else--modeling_own.OwnConfig"
    (directory / "config.json").write_text(json.dumps(config))
    assert "someone/else" in refusal(directory, trust_remote_code=True)


@pytest.mark.usefixtures("reads")
def test_what_a_model_lets_be_absent_is_initialised(saved, monkeypatch, tmp_path):
    sizes = {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
    }
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 32}
    BartForConditionalGeneration(BartConfig(**sizes, **heads)).save_pretrained(tmp_path / "bart")
    change(tmp_path / "bart", lambda weights: weights.pop("final_logits_bias"))
    bart = load(BartForConditionalGeneration, tmp_path / "bart")
    np.testing.assert_array_equal(bart.final_logits_bias.jax(), np.zeros((1, 32)))

    _, directory = saved("llama")
    change(directory, lambda weights: weights.pop("model.norm.weight"))
    monkeypatch.setattr(LlamaForCausalLM, "_keys_to_ignore_on_load_missing", [r"norm\.weight$"])
    llama = load(LlamaForCausalLM, directory)
    np.testing.assert_array_equal(llama.model.norm.weight.jax(), np.ones(32))
