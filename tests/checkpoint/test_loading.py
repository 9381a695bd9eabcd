"""Loading, against what transformers' own from_pretrained gives."""

import json
import os

import jax
import pytest
import torch
from jax.sharding import PartitionSpec
from transformers import AutoModel, AutoModelForCausalLM, GPT2LMHeadModel, LlamaForCausalLM

from tpuport import PortError, compat
from tpuport.checkpoint import load, model_mesh
from tpuport.sharding import ShardingRules


def arrays_of(model):
    return {name: compat.as_jax(parameter) for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_equals_from_pretrained_bit_for_bit(family, dtype, saved, mesh_of_size, assert_same):
    _, directory = saved(family)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype or "auto")
    mesh = mesh_of_size(tp=2)
    model = load(AutoModelForCausalLM, directory, mesh=mesh, dtype=dtype)
    assert_same(model, reference)
    assert type(model) is type(reference)
    assert len(list(model.parameters())) == len(list(reference.parameters()))
    assert model_mesh(model) is mesh
    assert any(not array.is_fully_replicated for array in arrays_of(model).values())


def test_the_loaded_model_computes_what_torch_computes(saved, mesh_of_size, logits):
    original, directory = saved("mixtral")
    model = load(AutoModelForCausalLM, directory, mesh=mesh_of_size(tp=2))
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    torch.testing.assert_close(logits(model), logits(original), atol=1e-5, rtol=1e-5)


def test_a_concrete_class_and_one_device(saved, assert_same):
    _, directory = saved("llama")
    model = load(LlamaForCausalLM, str(directory))
    assert_same(model, LlamaForCausalLM.from_pretrained(directory))
    assert model_mesh(model).size == 1


def test_several_files_with_an_index(saved, assert_same):
    original, directory = saved("llama", max_shard_size="20KB")
    assert len(list(directory.glob("*.safetensors"))) > 2
    assert_same(load(AutoModelForCausalLM, directory), original)


def test_tied_weights_are_one_array(saved):
    _, directory = saved("llama-tied")
    model = load(AutoModelForCausalLM, directory)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert compat.as_jax(model.lm_head.weight) is compat.as_jax(model.model.embed_tokens.weight)


@pytest.mark.parametrize("differ", [False, True])
def test_tied_weights_that_are_both_stored(differ, saved, assert_same, caplog):
    from safetensors.torch import load_file, save_file

    _, directory = saved("llama-tied")
    weights = load_file(directory / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["lm_head.weight"][-1, -1] += float(differ)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    model = load(AutoModelForCausalLM, directory)
    assert_same(model, AutoModelForCausalLM.from_pretrained(directory))
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is not differ
    assert ("untied" in caplog.text) is differ


def test_a_checkpoint_of_the_base_model_and_the_other_way_round(saved, tmp_path, assert_same):
    original, directory = saved("llama-tied")
    original.model.save_pretrained(tmp_path / "base")
    assert_same(load(LlamaForCausalLM, tmp_path / "base"), original)
    assert_same(load(AutoModel, directory), original.model)


def test_rules_of_the_user_decide(saved, mesh_of_size):
    _, directory = saved("llama")
    rules = ShardingRules({r".*\.q_proj\.weight": PartitionSpec(None, "tp")})
    model = load(AutoModelForCausalLM, directory, mesh=mesh_of_size(tp=4), rules=rules)
    arrays = arrays_of(model)
    assert arrays["model.layers.0.self_attn.q_proj.weight"].sharding.shard_shape((32, 32)) == (32, 8)
    assert arrays["model.layers.0.self_attn.k_proj.weight"].is_fully_replicated


def test_rules_that_do_not_fit_are_refused_before_reading(saved, mesh_of_size, monkeypatch):
    _, directory = saved("llama")
    monkeypatch.setattr(os, "preadv", None)
    rules = ShardingRules({r".*\.wq\.weight": PartitionSpec("tp", None)})
    with pytest.raises(PortError, match="wq"):
        load(AutoModelForCausalLM, directory, mesh=mesh_of_size(tp=4), rules=rules)


def test_each_weight_is_read_once_and_only_by_wanted_rows(saved, mesh_of_size, monkeypatch):
    """Eight devices hold eight slices: together the file's bytes, not eight times them."""
    _, directory = saved("llama")
    read, preadv = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *arguments: read.append(preadv(*arguments)) or read[-1])
    embedding = r"model\.embed_tokens\.weight"
    rules = ShardingRules({embedding: PartitionSpec("tp", None)})
    load(AutoModelForCausalLM, directory, mesh=mesh_of_size(tp=8), rules=rules)
    stored = sum(
        parameter.numel() * 4 for parameter in LlamaForCausalLM.from_pretrained(directory).parameters()
    )
    assert sum(read) == stored


def test_the_bar_counts_bytes(saved, monkeypatch):
    from tpuport.checkpoint import loading

    bars = []

    class Bar(loading.tqdm):
        def __init__(self, **options):
            super().__init__(**options)
            bars.append(self)

    monkeypatch.setattr(loading, "tqdm", Bar)
    original, directory = saved("mixtral")
    load(AutoModelForCausalLM, directory)
    [bar] = bars
    assert bar.n == bar.total == sum(parameter.numel() * 4 for parameter in original.parameters())
    assert bar.unit == "B"


def test_generation_defaults_come_along(saved):
    original, directory = saved("llama")
    original.generation_config.max_new_tokens = 7
    original.generation_config.save_pretrained(directory)
    assert load(AutoModelForCausalLM, directory).generation_config.max_new_tokens == 7


def test_config_options_are_passed_on_and_unknown_ones_refused(saved):
    _, directory = saved("llama")
    model = load(AutoModelForCausalLM, directory, attn_implementation="eager", rms_norm_eps=1e-3)
    assert model.config._attn_implementation == "eager"
    assert model.config.rms_norm_eps == 1e-3
    with pytest.raises(PortError, match="atn_implementation"):
        load(AutoModelForCausalLM, directory, atn_implementation="eager")


def test_a_config_without_a_dtype_leaves_it_to_the_weights(saved):
    _, directory = saved("llama")
    config = json.loads((directory / "config.json").read_text())
    del config["dtype"]
    (directory / "config.json").write_text(json.dumps(config))
    weights = load(AutoModelForCausalLM, directory, dtype="bfloat16").state_dict()
    assert {compat.as_jax(weight).dtype.name for weight in weights.values()} == {"bfloat16"}
    weights = load(AutoModelForCausalLM, directory).state_dict()
    assert {compat.as_jax(weight).dtype.name for weight in weights.values()} == {"float32"}


def test_old_buffers_in_a_checkpoint_are_ignored_as_the_model_says(saved, assert_same):
    from safetensors.torch import load_file, save_file

    _, directory = saved("gpt2")
    weights = load_file(directory / "model.safetensors")
    weights["transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    reference = GPT2LMHeadModel.from_pretrained(directory)
    assert_same(load(GPT2LMHeadModel, directory), reference)


def test_a_float16_checkpoint_keeps_what_its_model_keeps_in_float32(tmp_path, assert_same):
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 4}
    T5ForConditionalGeneration(T5Config(**sizes)).save_pretrained(tmp_path)
    reference = T5ForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float16)
    assert {parameter.dtype for parameter in reference.parameters()} == {torch.float16, torch.float32}
    assert_same(load(T5ForConditionalGeneration, tmp_path, dtype=torch.float16), reference)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_diffusers_model(dtype, tmp_path, mesh_of_size, assert_same):
    from diffusers import AutoModel as DiffusersAutoModel
    from diffusers import WanTransformer3DModel

    model = WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4,
        text_dim=16, freq_dim=32, ffn_dim=32, num_layers=1, rope_max_seq_len=32,
    )  # fmt: skip
    model.save_pretrained(tmp_path)
    reference = WanTransformer3DModel.from_pretrained(tmp_path, torch_dtype=dtype or torch.float32)
    for model_class in (WanTransformer3DModel, DiffusersAutoModel):
        loaded = load(model_class, tmp_path, mesh=mesh_of_size(dp=2), rules=ShardingRules({}), dtype=dtype)
        assert type(loaded) is WanTransformer3DModel
        assert {k: v.dtype for k, v in loaded.state_dict().items()} == {
            k: v.dtype for k, v in reference.state_dict().items()
        }
        for name, parameter in reference.named_parameters():
            assert torch.equal(compat.to_torch(compat.as_jax(loaded.get_parameter(name))), parameter), name


def test_weights_are_not_copied_on_a_cpu_device():
    """A device whose memory is the host's takes the buffer that was read: nothing exists twice."""
    import numpy as np

    from tpuport.checkpoint.device_layout import one_device_mesh, replicated_sharding
    from tpuport.checkpoint.lazy_tensors import Converted, Reader
    from tpuport.checkpoint.loading import make_sharded_array

    pointers = []

    class Spy(Converted):
        def read_into(self, reader, index, out):
            pointers.append(out.ctypes.data)
            out[...] = 1

    source = Spy((256, 64), np.dtype(np.float32), lambda reader: np.zeros(0))
    array = make_sharded_array(Reader(), source, np.dtype(np.float32), replicated_sharding(one_device_mesh()))
    assert array.unsafe_buffer_pointer() == pointers[0]
    assert isinstance(array, jax.Array)


def test_a_module_used_twice_has_one_weight(saved):
    """torch takes the copy that comes last, which is no better than the other."""

    class Twice(LlamaForCausalLM):
        def __init__(self, config):
            super().__init__(config)
            self.model.layers[1].mlp = self.model.layers[0].mlp

    _, directory = saved("llama")
    with pytest.raises(PortError, match="belong to one module") as caught:
        load(Twice, directory)
    assert "model.layers.0.mlp.up_proj.weight and model.layers.1.mlp.up_proj.weight" in str(caught.value)
