"""Saving a ported model writes the files that the model writes on the host, byte for byte, and leaves it as it is."""

import copy

import jax
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import torch as safetensors_torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import tpuport
from tpuport import compat

IDS = torch.arange(5)[None]


def build(tie=False):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=8, tie_word_embeddings=tie,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def assert_same_files(one, other):
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize("tie", [pytest.param(False, marks=pytest.mark.slow), True], ids=["untied", "tied"])
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_a_language_model(tie, devices, tmp_path):
    host = build(tie)
    model = tpuport.port(build(tie), mesh=tpuport.create_mesh(tp=devices, devices=jax.devices()[:devices]))
    logits = model(IDS).logits.cpu()
    dtype = model.config.dtype
    host.save_pretrained(tmp_path / "host", max_shard_size="20KB")
    model.save_pretrained(tmp_path / "device", max_shard_size="20KB")
    assert len(list((tmp_path / "device").glob("*.safetensors"))) > 2
    assert_same_files(tmp_path / "host", tmp_path / "device")
    assert model.config.dtype == dtype
    assert torch.equal(model(IDS).logits.cpu(), logits)
    assert model.forward.compiled.program.compilations == 1
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "device")
    assert torch.equal(again(IDS).logits, host(IDS).logits)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")
def test_an_adapter(tmp_path):
    def adapted():
        model = build()
        model = get_peft_model(model, LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
        return model.eval()

    host, model = adapted(), tpuport.port(adapted())
    host.save_pretrained(tmp_path / "host")
    model.save_pretrained(tmp_path / "device")
    assert_same_files(tmp_path / "host", tmp_path / "device")
    again = PeftModel.from_pretrained(build(), tmp_path / "device").eval()
    assert torch.equal(again(IDS).logits, host(IDS).logits)


def test_what_is_saved_is_what_is_on_the_device(tmp_path):
    model = tpuport.port(build())
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    model.save_pretrained(tmp_path / "device")
    assert "save_pretrained" not in vars(tpuport.to_cpu(model))
    model.save_pretrained(tmp_path / "host")
    weights = safetensors_torch.load_file(tmp_path / "device/model.safetensors")
    assert torch.equal(weights["lm_head.weight"], build().lm_head.weight * 2)
    assert torch.equal(model.lm_head.weight, weights["lm_head.weight"])


def test_safetensors_of_any_module(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.table, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
            self.head.weight = self.table.weight

    model = tpuport.port(Tied())
    safetensors_torch.save_model(model, tmp_path / "device.safetensors")
    safetensors_torch.save_model(Tied(), tmp_path / "host.safetensors")
    assert (tmp_path / "device.safetensors").read_bytes() == (tmp_path / "host.safetensors").read_bytes()
    with pytest.raises(RuntimeError, match="share memory"):  # torch's own, as on the host
        safetensors_torch.save_file(model.state_dict(), tmp_path / "file.safetensors")
    fresh = Tied()
    safetensors_torch.load_model(fresh, tmp_path / "device.safetensors")
    assert torch.equal(fresh.head.weight, Tied().head.weight)


class TestMemory:
    """Which tensors share memory, as libraries ask: by numbers, which mean nothing else."""

    @pytest.fixture(autouse=True)
    def enabled(self):
        tpuport.enable()

    def test_views_share_it_and_copies_do_not(self):
        x, y = torch.zeros(4, 3, device="jax"), torch.zeros(4, 3, device="jax")
        assert x.data_ptr() == x.detach().data_ptr() == x.view(12).data_ptr() == x.t().data_ptr()
        assert x[1].data_ptr() == x.data_ptr() + 3 * 4
        assert x[1].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert x[1].untyped_storage().nbytes() == 4 * 3 * 4
        assert len({x.data_ptr(), y.data_ptr(), x.clone().data_ptr(), copy.deepcopy(x).data_ptr()}) == 4
        assert abs(x.data_ptr() - y.data_ptr()) >= x.nbytes
        assert torch.zeros(0, device="jax").data_ptr() == 0

    def test_a_write_leaves_it(self):
        x = torch.zeros(4, 3, device="jax")
        before = x.data_ptr()
        x.add_(1)
        x[0].mul_(2)
        x.view(12).add_(1)
        x.add_(1)
        assert x.data_ptr() == before

    def test_other_memory(self):
        x, y = torch.zeros(3, device="jax"), torch.ones(3, device="jax")
        before = x.data_ptr()
        x.data = y
        assert x.data_ptr() != before
        x.set_(y)
        assert x.data_ptr() == y.data_ptr()

    def test_it_has_no_contents(self):
        x = torch.zeros(3, device="jax")
        with pytest.raises(tpuport.PortError, match=r"tpuport\.to_cpu\(x\)"):
            x.untyped_storage().tolist()
        with pytest.raises(tpuport.PortError, match="data_ptr"):
            tpuport.compile(lambda x: x + x.data_ptr())(x)
        assert compat.is_ported(x)


def test_a_model_of_diffusers_is_compiled_once(tmp_path):
    from diffusers import AutoencoderTiny

    model = AutoencoderTiny(
        encoder_block_out_channels=(8,), decoder_block_out_channels=(8,), num_encoder_blocks=(1,),
        num_decoder_blocks=(1,), latent_channels=4,
    )  # fmt: skip
    model = tpuport.port(model.eval())
    image = torch.zeros(1, 3, 8, 8)
    model(image)
    model.save_pretrained(tmp_path)
    # diffusers notes class and version in the configuration.
    assert "_class_name" in model.config
    model(image)
    assert model.forward.compiled.program.compilations == 1
