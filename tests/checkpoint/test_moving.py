"""Porting a model in memory: the same numbers, in place, all or nothing."""

import gc
import weakref

import numpy as np
import pytest
import torch
from jax.sharding import PartitionSpec

import tpuport
from tpuport import PortError, compat
from tpuport.checkpoint import load, model_mesh, port
from tpuport.checkpoint.device_layout import allowed_names
from tpuport.sharding import ShardingRules


def test_port_equals_torch_and_load(family, saved, tiny_model, mesh_of_size, assert_same):
    original, directory = saved(family)
    reference = tiny_model(family)
    mesh = mesh_of_size(tp=2)
    ported = port(original, mesh=mesh)
    assert ported is original
    assert model_mesh(ported) is mesh
    assert_same(ported, reference)
    loaded = load(type(reference), directory, mesh=mesh)
    for name, parameter in loaded.named_parameters():
        assert compat.as_jax(parameter).sharding == compat.as_jax(ported.get_parameter(name)).sharding, name


# Every family has torch's tensors (above); that they compute the same without compilation needs few of them.
@pytest.mark.parametrize(
    "computing_family",
    [
        pytest.param(name, marks=() if name in ("llama-tied", "gpt-oss") else pytest.mark.slow)
        for name in ("llama-tied", "gemma3", "phi3", "gpt2", "gpt-oss", "mixtral")
    ],
)
def test_a_ported_model_computes_what_torch_computes(computing_family, tiny_model, mesh_of_size, logits):
    model = tiny_model(computing_family)
    model.set_attn_implementation("eager")
    expected = logits(model)
    port(model, mesh=mesh_of_size(tp=2))
    torch.testing.assert_close(logits(model), expected, atol=1e-5, rtol=1e-5)


def test_the_module_stays_an_ordinary_one(tiny_model):
    model = port(tiny_model("llama-tied").train())
    assert isinstance(model.lm_head.weight, torch.nn.Parameter)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    # As torch's own moves leave them.
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    model.tie_weights()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    assert names == model.state_dict().keys()


def test_porting_again_changes_nothing_and_can_move(tiny_model, mesh_of_size, assert_same):
    reference, model = tiny_model(), tiny_model()
    first, second = mesh_of_size(tp=2), mesh_of_size(tp=4)
    port(model, mesh=first)
    before = {name: compat.as_jax(weight).sharding for name, weight in model.named_parameters()}
    port(model)
    assert {name: compat.as_jax(weight).sharding for name, weight in model.named_parameters()} == before
    assert_same(model, reference)
    rules = ShardingRules({r"model\.layers.*proj\.weight": PartitionSpec("tp", None)})
    port(model, mesh=second, rules=rules)
    assert model_mesh(model) is second
    weight = compat.as_jax(model.model.layers[0].mlp.down_proj.weight)
    assert weight.sharding.shard_shape(weight.shape) == (8, 48)
    assert compat.as_jax(model.model.rotary_emb.inv_freq).sharding.mesh == second
    assert_same(model, reference)


def test_dtype_casts_weights_and_not_rotary_frequencies(tiny_model, assert_same):
    reference = tiny_model().to(torch.bfloat16)
    reference.model.rotary_emb = tiny_model().model.rotary_emb
    assert_same(port(tiny_model(), dtype="bfloat16"), reference)
    assert_same(port(port(tiny_model()), dtype=torch.bfloat16), reference)


@pytest.mark.usefixtures("small_heap")
def test_torch_memory_is_given_up(tiny_model):
    model = tiny_model()
    observed = [weakref.ref(parameter) for parameter in model.parameters()]
    port(model)
    gc.collect()
    assert [reference() for reference in observed] == [None] * len(observed)


class WithBuffers(torch.nn.Module):
    def __init__(self, largest=3):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("steps", torch.tensor([1, largest], dtype=torch.int64))
        self.register_buffer("shared", torch.ones(2, dtype=torch.bool))
        self.register_buffer("also_shared", self.shared)


def test_buffers_are_everywhere_and_integers_narrow(mesh_of_size):
    model = port(WithBuffers(), mesh=mesh_of_size(dp=2, tp=2), rules=ShardingRules({}))
    for name, buffer in model.named_buffers():
        array = compat.as_jax(buffer)
        assert len(array.sharding.device_set) == 4, name
        assert array.is_fully_replicated, name
    assert compat.as_jax(model.steps).dtype == np.int32
    np.testing.assert_array_equal(compat.as_jax(model.steps), [1, 3])
    assert model.shared is model.also_shared


@pytest.mark.parametrize("problem", ["meta", "rules", "integer", "sparse", "complex64-ok"])
def test_nothing_moves_when_something_cannot(problem, mesh_of_size):
    model = WithBuffers(2**40 if problem == "integer" else 3)
    rules = ShardingRules({r"nothing": PartitionSpec("tp")} if problem == "rules" else {})
    if problem == "meta":
        model.norm.weight = torch.nn.Parameter(torch.empty(3, device="meta"))
    if problem == "sparse":
        model.last = torch.nn.Linear(3, 3)
        model.last.weight = torch.nn.Parameter(torch.eye(3).to_sparse(), requires_grad=False)
    if problem == "complex64-ok":
        model.register_buffer("table", torch.ones(2, dtype=torch.complex64))
        assert compat.as_jax(port(model).table).dtype == np.complex64
        return
    named = {
        "meta": "norm.weight", "rules": "nothing", "integer": "steps",
        "sparse": r"sparse_coo tensor(.|\n)*last\.weight",
    }[problem]  # fmt: skip
    with pytest.raises(PortError, match=named):
        port(model, mesh=mesh_of_size(tp=2), rules=rules)
    assert not any(compat.is_ported(tensor) for tensor in model.state_dict().values())
    assert model_mesh(model) is None


def test_only_modules():
    with pytest.raises(PortError, match="function"):
        port(lambda x: x)
    with pytest.raises(PortError, match="bfloat61"):
        port(WithBuffers(), dtype="bfloat61")


@pytest.mark.parametrize("dtype", [torch.int8, "int32", torch.bool, torch.complex64])
def test_weights_are_not_cast_to_what_holds_no_fractions(tiny_model, dtype):
    model = tiny_model()
    with pytest.raises(PortError, match=r"cannot be cast(.|\n)*dtype"):
        port(model, dtype=dtype)
    assert not any(compat.is_ported(tensor) for tensor in model.state_dict().values())


def test_one_name_may_be_allowed_as_it_is(tiny_model, mesh_of_size):
    rules = ShardingRules({"nothing": PartitionSpec("tp")})
    with pytest.raises(PortError, match="nothing"):
        port(tiny_model(), mesh=mesh_of_size(tp=2), rules=rules)
    for allow in ("nothing", ["nothing"]):
        assert model_mesh(port(tiny_model(), mesh=mesh_of_size(tp=2), rules=rules, allow=allow)) is not None
    with pytest.raises(PortError, match=r"3 is not a name"):
        allowed_names([3])


def test_a_quantised_model_is_refused(tiny_model):
    model = tiny_model()
    model.hf_quantizer = object()
    with pytest.raises(PortError, match="quantised"):
        port(model)


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "normalize", [torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm], ids=["weight", "spectral"]
)
def test_a_weight_that_is_computed_before_each_call_compiles_once(normalize):
    torch.manual_seed(0)
    model = torch.nn.Sequential(normalize(torch.nn.Linear(3, 4))).eval()
    expected = model(torch.ones(2, 3)).detach()
    compiled = tpuport.compile(tpuport.port(model))
    for _ in range(2):
        torch.testing.assert_close(tpuport.to_cpu(compiled(torch.ones(2, 3))), expected)
    assert compiled.program.compilations == 1
    # The parameters are what counts, not the weight that was moved.
    tpuport.to_cpu(model)
    torch.testing.assert_close(model(torch.ones(2, 3)), expected)


class WithSparseBuffer(torch.nn.Module):
    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("adjacent", torch.eye(3).to_sparse())
        self.reads = reads

    def forward(self, x):
        y = self.linear(x)
        return torch.sparse.mm(self.adjacent, y) if self.reads else y


def test_a_buffer_that_is_never_read_stays_on_the_host(caplog):
    model = WithSparseBuffer(reads=False).eval().requires_grad_(False)
    x = torch.randn(3, 3)
    expected = model(x)
    tpuport.port(model)
    assert "adjacent stays on the host" in caplog.text
    torch.testing.assert_close(tpuport.to_cpu(model(x)), expected)
    assert tpuport.to_cpu(model).adjacent.is_sparse


def test_code_that_reads_it_is_refused_with_its_line():
    model = tpuport.port(WithSparseBuffer(reads=True))
    text = r"(?s)a sparse tensor does not become an array.*line \d+, in WithSparse.*TPU114.*to_dense"
    with pytest.raises(PortError, match=text):
        model(torch.randn(3, 3))
