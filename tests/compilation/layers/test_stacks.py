"""Models whose blocks' weights are stacked: compiled in a loop, one copy of the weights, and back again."""

import jax
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tpuport
from tpuport import PortError, compat
from tpuport.compilation import layers
from tpuport.compilation.layers.stacks import StackedWeight

CONFIG = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip
IDS = torch.arange(12).reshape(2, 6)
MESHES = {"one": {}, "tp2": {"tp": 2}, "dp2": {"dp": 2}, "dp2 tp2": {"dp": 2, "tp": 2}}


def built(mesh: dict[str, int] | None = None) -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    if mesh is None:
        return model
    count = int(np.prod(list(mesh.values()) or [1]))
    return tpuport.port(model, mesh=tpuport.create_mesh(**mesh, devices=jax.devices()[:count]))


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    with torch.no_grad():
        return built()(IDS).logits


@pytest.mark.slow  # the blocks in few bits below, on two devices
@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(MESHES["one"], marks=pytest.mark.slow), pytest.param(MESHES["tp2"], marks=pytest.mark.slow),
        pytest.param(MESHES["dp2"], marks=pytest.mark.slow), MESHES["dp2 tp2"],
    ],
    ids=MESHES,
)  # fmt: skip
def test_a_compiled_model_in_a_loop_gives_what_torch_gives(mesh, expected) -> None:
    model = built(mesh)
    step = tpuport.compile(model, scan_layers=True)
    logits = tpuport.to_cpu(step(input_ids=IDS).logits)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert step.scanned == (layers.ScannedBlocks("model.layers", 2),)
    assert step.declined == ()
    assert "while" in step.lower(input_ids=IDS).as_text()


@pytest.mark.parametrize(
    "scheme", ["int8", *(pytest.param(scheme, marks=pytest.mark.slow) for scheme in ("int4:8", "w8a8"))]
)
def test_quantised_blocks_are_computed_in_a_loop(scheme) -> None:
    torch.manual_seed(0)
    mesh = tpuport.create_mesh(tp=2, devices=jax.devices()[:2])
    model = tpuport.port(LlamaForCausalLM(CONFIG).eval(), mesh=mesh, quantize=scheme)
    before = {name: np.asarray(compat.as_jax(part)) for name, part in model.named_buffers()}
    expected = tpuport.to_cpu(tpuport.compile(model)(input_ids=IDS).logits)
    step = tpuport.compile(model, scan_layers=True)
    torch.testing.assert_close(tpuport.to_cpu(step(input_ids=IDS).logits), expected, atol=1e-6, rtol=1e-6)
    assert step.scanned == (layers.ScannedBlocks("model.layers", 2),)
    assert isinstance(model.model.layers[1].mlp.up_proj.weight_quantized.values, StackedWeight)
    layers.unstack_layers(model)
    after = {name: np.asarray(compat.as_jax(part)) for name, part in model.named_buffers()}
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert model.model.layers[0].mlp.up_proj.weight_quantized.values.shape[-1] == 48


def test_weights_are_there_once_and_sharded_as_before() -> None:
    model = built({"tp": 2})
    before = {name: compat.as_jax(x) for name, x in model.named_parameters()}
    spec = before["model.layers.1.mlp.up_proj.weight"].sharding.spec
    held = sum(array.nbytes for array in before.values())
    del before
    layers.stack_layers(model)
    arrays = tpuport.compilation.collect_weights(model)
    stacked = arrays["model.layers.*.mlp.up_proj.weight"]
    assert (stacked.shape, tuple(stacked.sharding.spec)) == ((2, 48, 32), (None, *spec))
    weights = {name: x for name, x in arrays.items() if "inv_freq" not in name}
    assert sum(array.nbytes for array in weights.values()) == held
    assert not any(compat.is_ported(x) for x in model.model.layers.parameters())
    own = {id(compat.as_jax(x)) for x in model.parameters() if compat.is_ported(x)}
    assert own == {id(x) for name, x in weights.items() if ".*." not in name}


@pytest.mark.slow  # tests/test_porting.py gives everything back
def test_weights_come_back_as_they_were() -> None:
    twin, model = built(), built({"tp": 2})
    sharding = compat.as_jax(model.model.layers[1].mlp.up_proj.weight).sharding
    layers.stack_layers(model)
    assert layers.stack_layers(model) == ()
    layers.unstack_layers(model)
    assert compat.as_jax(model.model.layers[1].mlp.up_proj.weight).sharding == sharding
    layers.stack_layers(model)
    tpuport.to_cpu(model)
    for name, weight in twin.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name


@pytest.mark.slow  # on the mesh dp2 tp2 above
def test_a_stacked_model_is_ported_again(expected) -> None:
    model = built({})
    layers.stack_layers(model)
    tpuport.port(model, mesh=tpuport.create_mesh(tp=2, devices=jax.devices()[:2]))
    logits = tpuport.to_cpu(tpuport.compile(model)(input_ids=IDS).logits)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_generate_takes_a_stacked_model() -> None:
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    wanted = tpuport.generate(built({}), IDS, **options)
    model = built({})
    layers.stack_layers(model)
    assert torch.equal(tpuport.generate(model, IDS, **options), wanted)


@pytest.mark.slow  # tests/topology/test_compiling.py compiles blocks one by one
def test_a_compiled_function_stays_unscanned_where_it_is_asked_to(expected) -> None:
    model = built({})
    layers.stack_layers(model)
    step = tpuport.compile(model, scan_layers=False)
    torch.testing.assert_close(tpuport.to_cpu(step(input_ids=IDS).logits), expected, atol=1e-5, rtol=1e-5)
    assert step.scanned == ()
    again = tpuport.compile(model)
    torch.testing.assert_close(tpuport.to_cpu(again(input_ids=IDS).logits), expected, atol=1e-5, rtol=1e-5)
    assert again.scanned == (layers.ScannedBlocks("model.layers", 2),)


def test_whoever_reads_a_stacked_weight_is_told() -> None:
    model = built({})
    layers.stack_layers(model)
    weight = model.model.layers[1].mlp.up_proj.weight
    assert tuple(weight.shape) == (48, 32)
    assert "row 1 of (2, 48, 32)" in repr(weight)
    for read in (lambda: weight + 1, lambda: weight.jax(), lambda: weight.sum().item()):
        with pytest.raises(PortError, match="row of an array"):
            read()
    with (
        compat.environment(),
        pytest.raises((PortError, AssertionError), match=r"row of an array|StackedWeight"),
    ):
        model(IDS.to("jax"))


def test_one_block_of_a_stacked_model_is_not_compiled_alone() -> None:
    model = built({})
    layers.stack_layers(model)
    block = tpuport.compile(model.model.layers[0].mlp)
    with pytest.raises(PortError, match="without the others"):
        block(torch.zeros(1, 2, 32))
    whole = tpuport.compile(model.model)
    assert tpuport.to_cpu(whole(input_ids=IDS).last_hidden_state).shape == (2, 6, 32)


def test_shared_weights_stay_where_they_are(expected) -> None:
    # The block between the two has a weight of its own.
    model = LlamaForCausalLM(LlamaConfig(**CONFIG.to_dict() | {"num_hidden_layers": 3})).eval()
    model.model.layers[2].mlp.up_proj.weight = model.model.layers[0].mlp.up_proj.weight
    with torch.no_grad():
        wanted = model(IDS).logits
    tpuport.port(model)
    step = tpuport.compile(model, scan_layers=True)
    torch.testing.assert_close(tpuport.to_cpu(step(input_ids=IDS).logits), wanted, atol=1e-5, rtol=1e-5)
