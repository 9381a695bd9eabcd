"""Models whose weights are quantised on their way to the devices, against torch with the numbers they stand for."""

import copy

import jax
import numpy as np
import pytest
import torch
from jax.sharding import PartitionSpec
from transformers import AutoModelForCausalLM

import tpuport
from tpuport import PortError, compat
from tpuport.checkpoint import load
from tpuport.compilation import compile
from tpuport.quantization import QuantizationRules, quantized_weights
from tpuport.sharding import ShardingRules, audit

SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "num_hidden_layers": 1}
IDS = torch.arange(18).reshape(2, 9) % 64


@pytest.fixture(scope="module")
def llama(tiny_model):
    return tiny_model("llama", **SIZES)


def parts(model):
    return {
        (name, part): compat.as_jax(buffer)
        for name, _, _, weight in quantized_weights(model)
        for part, buffer in weight.parts.items()
    }


@pytest.mark.parametrize(
    ("scheme", "sizes"),
    [
        pytest.param("int4:32", {}, marks=pytest.mark.slow),
        ("int4:32", {"tp": 2, "dp": 2}),
        # The model below that moves to another mesh is in int8.
        pytest.param("int8", {"tp": 2, "dp": 2}, marks=pytest.mark.slow),
        pytest.param("int8", {}, marks=pytest.mark.slow),
        pytest.param("fp8", {}, marks=pytest.mark.slow),
        # Scales as of int8; `test_schemes` has its numbers.
        pytest.param("fp8", {"tp": 2, "dp": 2}, marks=pytest.mark.slow),
    ],
)
def test_logits_are_those_of_the_numbers_that_the_values_stand_for(scheme, sizes, llama, mesh_of_size):
    mesh = mesh_of_size(**sizes) if sizes else None
    model = tpuport.port(copy.deepcopy(llama), mesh=mesh, quantize=scheme)
    logits = tpuport.to_cpu(model(input_ids=IDS).logits)
    dense = tpuport.to_cpu(model)
    assert type(dense.model.layers[0].mlp.up_proj) is torch.nn.Linear
    torch.testing.assert_close(logits, dense(input_ids=IDS).logits, rtol=1e-5, atol=1e-5)
    # The weights are other numbers than before, and not far from them.
    weight, original = (m.model.layers[0].mlp.down_proj.weight for m in (dense, llama))
    assert 0 < (weight - original).abs().max() < original.abs().max() / 6


def test_devices_divide_inputs_within_what_would_be_a_group(mesh_of_size):
    """244 inputs for each of eight devices, of which each 128 share a scale."""
    torch.manual_seed(0)
    module = torch.nn.Linear(1952, 8, bias=False)
    x = torch.randn(2, 1952)
    alone, divided = copy.deepcopy(module), copy.deepcopy(module)
    tpuport.port(alone, quantize={"weight": "int4"})
    rules = tpuport.ShardingRules({"weight": PartitionSpec(None, "tp")})
    tpuport.port(divided, mesh=mesh_of_size(tp=8), rules=rules, quantize={"weight": "int4"})
    assert parts(divided)["weight", "values"].sharding.spec == PartitionSpec("tp", None, None)
    output = tpuport.to_cpu(compile(divided)(x))
    dense = tpuport.to_cpu(alone)
    torch.testing.assert_close(output, dense(x), rtol=1e-5, atol=1e-5)
    assert torch.equal(tpuport.to_cpu(divided).weight, dense.weight)
    assert 0 < (dense.weight - module.weight).abs().max() < module.weight.abs().max() / 6


@pytest.mark.parametrize("scheme", ["int8", "int4:32"])
def test_sizes_are_those_of_what_is_stored(scheme, llama, mesh_of_size):
    mesh = mesh_of_size(tp=2)
    dense = llama.get_memory_footprint()
    model = tpuport.port(copy.deepcopy(llama), mesh=mesh, quantize=scheme)
    assert model.num_parameters() == llama.num_parameters()
    assert model.num_parameters(exclude_embeddings=True) == llama.num_parameters(exclude_embeddings=True)
    linear = [module.weight.shape for module in llama.modules() if isinstance(module, torch.nn.Linear)][:-1]
    count = sum(map(np.prod, linear))
    scales = sum(outputs for outputs, _ in linear) if scheme == "int8" else count // 32
    stored = count // (1 if scheme == "int8" else 2) + 4 * scales
    assert model.get_memory_footprint() == dense - 4 * count + stored
    report = audit(ShardingRules.from_model(model), model, mesh)
    on_device = {
        name: sum(shard.data.size for shard in array.addressable_shards if shard.device == jax.devices()[0])
        * jax.dtypes.itemsize_bits(array.dtype) / 8
        for name, array in parts(model).items()
    }  # fmt: skip
    placed = {placement.name: placement for placement in report.placements}
    for name, _, _, weight in quantized_weights(model):
        own = [size for (owner, _), size in on_device.items() if owner == name]
        assert placed[name].device_bytes == sum(own)
        assert placed[name].total_bytes == sum(weight.part_bytes.values())
    assert report.total_bytes == sum(p.nelement() * 4 for p in llama.parameters()) - 4 * count + stored
    tpuport.to_cpu(model)
    assert model.num_parameters() == llama.num_parameters()
    assert model.get_memory_footprint() == dense


def test_the_audit_sees_groups_that_an_axis_would_cut(llama, mesh_of_size):
    model = tpuport.port(copy.deepcopy(llama), quantize="int4:64")
    report = audit(ShardingRules.from_model(model), model, mesh_of_size(tp=4))
    assert any("within a group" in error for error in report.errors)


def test_four_bits_come_back_from_the_host(llama):
    model = tpuport.port(copy.deepcopy(llama), quantize="int4:32")
    logits = tpuport.to_cpu(model(input_ids=IDS).logits)
    before = {name: array.dtype for name, array in parts(model).items()}
    model.cpu()
    assert not any(compat.is_ported(buffer) for buffer in model.buffers())
    tpuport.port(model)
    assert {name: array.dtype for name, array in parts(model).items()} == before
    torch.testing.assert_close(tpuport.to_cpu(model(input_ids=IDS).logits), logits, rtol=0, atol=0)


def round_rows(module, arguments):
    """What a product of integers makes of activations."""
    [activations] = arguments
    scale = activations.abs().amax(-1, keepdim=True) / 127
    return torch.where(scale == 0, 0.0, (activations / scale).round()) * scale


@pytest.mark.parametrize("sizes", [pytest.param({}, marks=pytest.mark.slow), {"tp": 2, "dp": 2}])
def test_w8a8_rounds_activations_too(sizes, llama, mesh_of_size):
    mesh = mesh_of_size(**sizes) if sizes else None
    model = tpuport.port(copy.deepcopy(llama), mesh=mesh, quantize="w8a8")
    logits = tpuport.to_cpu(model(input_ids=IDS).logits)
    dense = tpuport.to_cpu(model)
    unrounded = dense(input_ids=IDS).logits
    for name, module in dense.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.register_forward_pre_hook(round_rows)
    torch.testing.assert_close(logits, dense(input_ids=IDS).logits, rtol=1e-4, atol=1e-4)
    assert (logits - unrounded).abs().max() > 1e-3


def test_generation_is_that_of_the_dense_model(llama, mesh_of_size):
    model = tpuport.port(copy.deepcopy(llama), mesh=mesh_of_size(tp=2), quantize="int4:32")
    tokens = tpuport.generate(model, IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=6)
    dense = tpuport.to_cpu(model)
    expected = dense.generate(IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=6, do_sample=False)
    assert torch.equal(torch.as_tensor(tokens), expected)


def test_the_parts_are_sharded_with_their_weight(llama, mesh_of_size):
    model = tpuport.port(copy.deepcopy(llama), mesh=mesh_of_size(tp=2), quantize="int4:32")
    arrays = parts(model)
    up, down = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
    assert arrays[up, "values"].sharding.spec == PartitionSpec(None, None, "tp")
    assert arrays[up, "scale"].sharding.spec == PartitionSpec(None, "tp")
    assert arrays[down, "values"].sharding.spec == PartitionSpec("tp", None, None)
    assert arrays[down, "scale"].sharding.spec == PartitionSpec("tp", None)
    assert arrays[down, "values"].dtype == jax.numpy.int4
    assert arrays[down, "values"].shape == (4, 32, 64)


def test_loading_gives_what_porting_gives(saved, mesh_of_size):
    original, directory = saved("llama", **SIZES)
    mesh = mesh_of_size(tp=2)
    loaded = load(AutoModelForCausalLM, directory, mesh=mesh, quantize="int4:16")
    ported = tpuport.port(copy.deepcopy(original), mesh=mesh, quantize="int4:16")
    expected = parts(ported)
    for key, array in parts(loaded).items():
        np.testing.assert_array_equal(np.asarray(array), np.asarray(expected[key]))
        assert array.sharding == expected[key].sharding
    assert len(expected) == 14


@pytest.mark.slow  # test_to_cpu.py moves models
def test_a_quantised_model_moves_to_another_mesh_and_dtype(llama, mesh_of_size):
    model = tpuport.port(copy.deepcopy(llama), quantize="int8")
    before = tpuport.to_cpu(model(input_ids=IDS).logits)
    values = np.asarray(parts(model)["model.layers.0.mlp.up_proj.weight", "values"])
    tpuport.port(model, mesh=mesh_of_size(tp=2))
    torch.testing.assert_close(tpuport.to_cpu(model(input_ids=IDS).logits), before, rtol=1e-5, atol=1e-5)
    moved = parts(model)["model.layers.0.mlp.up_proj.weight", "values"]
    assert moved.sharding.spec == PartitionSpec(None, None, "tp")
    tpuport.port(model, dtype="bfloat16")
    moved = parts(model)["model.layers.0.mlp.up_proj.weight", "values"]
    assert moved.dtype == np.int8
    np.testing.assert_array_equal(np.asarray(moved), values)
    assert model(input_ids=IDS).logits.dtype == torch.bfloat16
    assert model.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16


def test_a_quantised_model_is_not_quantised_again(llama):
    model = tpuport.port(copy.deepcopy(llama), quantize="int4:32")
    with pytest.raises(PortError, match=r"quantised weights already \(int4:32\)"):
        tpuport.port(model, quantize="int8")


def test_modules_that_stay_in_float32():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    model = tpuport.port(T5ForConditionalGeneration(config), quantize="int8", dtype="bfloat16")
    feed_forward = model.encoder.block[0].layer[1].DenseReluDense
    # transformers keeps `wo` in float32 where the others are in float16, whose range is too small for it.
    assert (feed_forward.wi.weight.dtype, feed_forward.wo.weight.dtype) == (torch.bfloat16, torch.bfloat16)
    tpuport.port(model, dtype="float16")
    assert (feed_forward.wi.weight.dtype, feed_forward.wo.weight.dtype) == (torch.float16, torch.float32)


def test_rules_choose_weights(llama):
    rules = QuantizationRules({r".*\.mlp\..*": "int4:32", r".*\.q_proj\.weight": "int8"})
    model = tpuport.port(copy.deepcopy(llama), quantize=rules)
    schemes = {name: weight.scheme for name, _, _, weight in quantized_weights(model)}
    assert len(schemes) == 4
    assert schemes["model.layers.0.mlp.up_proj.weight"] == "int4:32"
    assert schemes["model.layers.0.self_attn.q_proj.weight"] == "int8"


def test_groups_that_devices_would_cut_are_refused_before_anything_moves(llama, mesh_of_size):
    model = copy.deepcopy(llama)
    with pytest.raises(PortError, match="within a group") as caught:
        tpuport.port(model, mesh=mesh_of_size(tp=4), quantize="int4:64")
    assert "model.layers.0.mlp.down_proj.weight" in str(caught.value)
    assert "up_proj" not in str(caught.value)
    assert not any(map(compat.is_ported, model.parameters()))
    assert type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear


def test_weights_that_are_not_finite_are_refused(llama):
    model = copy.deepcopy(llama)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 5] = float("nan")
    with pytest.raises(PortError, match="not finite") as caught:
        tpuport.port(model, quantize="int8")
    assert "model.layers.0.mlp.up_proj.weight" in str(caught.value)
    assert not any(map(compat.is_ported, model.parameters()))


def test_a_stored_weight_that_is_not_finite_is_refused(saved):
    original, directory = saved("llama")
    with torch.no_grad():
        original.model.layers[0].mlp.up_proj.weight[3, 5] = float("inf")
    original.save_pretrained(directory)
    with pytest.raises(PortError, match="not finite") as caught:
        load(AutoModelForCausalLM, directory, quantize="int8")
    assert "model.layers.0.mlp.up_proj.weight" in str(caught.value)


@pytest.mark.parametrize("scheme", ["int8", "int4:32"])
def test_saving(scheme, llama, tmp_path):
    model = tpuport.port(copy.deepcopy(llama), quantize=scheme)
    with pytest.raises(PortError, match="cannot be saved"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    torch.save(model.state_dict(), tmp_path / "state.pt")
    name = "model.layers.0.mlp.up_proj.weight"
    stored = torch.load(tmp_path / "state.pt", map_location="cpu", weights_only=False)
    np.testing.assert_array_equal(
        stored[f"{name}_quantized.values"], np.asarray(parts(model)[name, "values"], np.int8)
    )
    tpuport.to_cpu(model).save_pretrained(tmp_path)
    restored = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(restored.get_parameter(name), model.get_parameter(name))


class TestOneLayer:
    @pytest.fixture
    def layer(self):
        torch.manual_seed(0)
        return tpuport.port(torch.nn.Sequential(torch.nn.Linear(8, 4)), quantize="int8")

    def test_the_weight_reads_as_numbers(self, layer):
        weight = layer[0].weight
        assert weight.shape == (4, 8)
        assert weight.dtype == torch.float32
        assert isinstance(layer[0], torch.nn.Linear)
        assert type(layer[0]).__name__ == "Linear"
        values = parts(layer)["0.weight", "values"], parts(layer)["0.weight", "scale"]
        numbers = np.asarray(values[0], np.float64)[0] * np.asarray(values[1], np.float64)
        np.testing.assert_allclose(tpuport.to_cpu(weight), numbers.T, rtol=1e-6)

    @pytest.mark.parametrize(
        "write",
        [
            lambda layer: layer.weight.add_(1),
            lambda layer: layer.weight.data.mul_(2),
            lambda layer: layer.weight.T.zero_(),
            # Of what they view, nothing else is left.
            lambda layer: layer.weight[0].fill_(1),
            lambda layer: layer.weight.detach().zero_(),
            lambda layer: layer.weight.data.__setitem__(0, 1),
            lambda layer: layer.weight.set_(torch.zeros(4, 8).to("jax")),
            lambda layer: setattr(layer.weight, "data", torch.zeros(4, 8).to("jax")),
            lambda layer: torch.as_strided(layer.weight, (4,), (1,)).zero_(),
        ],
    )
    def test_writes_would_be_lost_and_are_refused(self, layer, write):
        with torch.no_grad(), pytest.raises(PortError, match="cannot be written to"):
            write(layer[0])

    def test_any_product_with_it_is_that_of_the_numbers(self, layer):
        x = torch.randn(3, 8)

        def products(model, x):
            weight = model[0].weight
            return (
                torch.nn.functional.linear(x, weight),
                x @ weight.T,
                torch.nn.functional.linear(x, weight.clone()),
            )

        device_x = x.to("jax")
        first, second, third = map(tpuport.to_cpu, tpuport.compile(products)(layer, device_x))
        dense = tpuport.to_cpu(layer)[0].weight
        for result in (first, second, third):
            torch.testing.assert_close(result, x @ dense.T, rtol=1e-5, atol=1e-6)

    def test_it_moves_as_other_models_do(self, layer):
        x = torch.randn(3, 8)
        layer.bfloat16()
        assert layer[0].weight.dtype == torch.bfloat16
        assert parts(layer)["0.weight", "values"].dtype == np.int8
        before = tpuport.to_cpu(layer.float()(x))
        layer.cpu()
        assert not compat.is_ported(layer[0].weight)
        torch.testing.assert_close(layer(x), before)
        layer.to("jax")
        torch.testing.assert_close(tpuport.to_cpu(layer(x)), before)

    def test_weights_cannot_be_replaced(self, layer):
        for value in (torch.nn.Parameter(torch.zeros(4, 8)), torch.zeros(4, 8)):
            with pytest.raises(PortError, match="cannot be replaced"):
                layer[0].weight = value
        with pytest.raises(PortError, match="cannot be loaded into quantised"):
            layer.load_state_dict({"0.weight": torch.zeros(4, 8), "0.bias": torch.zeros(4)})
        layer.load_state_dict(layer.state_dict())

    def test_a_copy_has_weights_of_its_own(self, layer):
        twin = copy.deepcopy(layer)
        tpuport.to_cpu(layer)
        assert twin[0].weight.shape == (4, 8)
        assert len(parts(twin)) == 2
