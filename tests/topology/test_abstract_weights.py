"""Weights that are not there: their bytes on a chip are those of the shards that `port` really makes."""

import functools
from math import prod

import jax
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

import tpuport
from tpuport.compilation import collect_weights
from tpuport.errors import PortError
from tpuport.sharding import ShardingRules
from tpuport.topology import compile_for, described
from tpuport.topology.abstract_weights import (
    abstract_weights,
    build_model,
    bytes_by_dtype,
    local_nbytes,
    nbytes,
)

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")

SPLITS = st.sampled_from([(1, 1, 8), (2, 1, 4), (4, 1, 2), (8, 1, 1), (1, 1, 4), (2, 1, 2), (1, 1, 1)])
RULES = ShardingRules(
    {
        r"embed_tokens\.weight": PartitionSpec("tp", None),
        r"mlp\.(gate|up)_proj\.weight": PartitionSpec("tp", "dp"),
        r"mlp\.down_proj\.weight": PartitionSpec(None, ("tp", "dp")),
    }
)


@st.composite
def configs(draw: st.DrawFn) -> LlamaConfig:
    heads = draw(st.sampled_from([8, 16]))
    return LlamaConfig(
        hidden_size=heads * draw(st.sampled_from([8, 16])),
        intermediate_size=draw(st.sampled_from([64, 96, 160])),
        num_hidden_layers=draw(st.integers(1, 2)),
        num_attention_heads=heads,
        num_key_value_heads=draw(st.sampled_from([1, 2, 8])),
        vocab_size=draw(st.sampled_from([64, 72])),
        tie_word_embeddings=draw(st.booleans()),
        attention_bias=draw(st.booleans()),
        max_position_embeddings=64,
    )


@pytest.mark.slow  # the arithmetic of test_zoo.py, and the real shards of tests/sharding/test_auditing.py
@settings(
    settings.get_profile("few"),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    config=configs(),
    split=SPLITS,
    rules=st.sampled_from([None, RULES]),
    dtype=st.sampled_from([None, torch.bfloat16]),
)
def test_bytes_on_a_chip_are_those_of_the_shards_that_port_makes(config, split, rules, dtype) -> None:
    dp, sp, tp = split
    count = prod(split)
    model = LlamaForCausalLM(config).eval()
    here = tpuport.create_mesh(dp, sp, tp, devices=jax.devices()[:count])
    ported, refused = _ported(model, here, rules, dtype)
    if refused is not None:  # sizes that this mesh does not divide: the described one refuses them too
        with pytest.raises(PortError) as caught:
            _abstract(config, split, rules, dtype)
        assert caught.value.what == refused
        return
    arrays = {id(array): array for array in collect_weights(ported).values()}.values()
    first = here.devices.flat[0]
    real = sum(
        shard.data.nbytes for array in arrays for shard in array.addressable_shards if shard.device == first
    )
    abstract = _abstract(config, split, rules, dtype)
    assert sum(local_nbytes(value) for value in abstract.values()) == real
    assert sum(nbytes(value) for value in abstract.values()) == sum(array.nbytes for array in arrays)
    assert sum(bytes_by_dtype(abstract).values()) == sum(array.nbytes for array in arrays)


def _ported(model, mesh, rules, dtype):
    """(the model on real devices, None), or (None, why not)."""
    try:
        return tpuport.port(model, mesh=mesh, rules=rules, dtype=dtype), None
    except PortError as error:
        return None, error.what


def _abstract(config, split, rules, dtype):
    dp, sp, tp = split
    devices = described("v5e:2x4").devices[: prod(split)]
    mesh = tpuport.create_mesh(dp, sp, tp, devices=devices)
    return abstract_weights(build_model(lambda: LlamaForCausalLM(config)), mesh, rules, dtype, ())


@pytest.mark.slow  # the bytes above, and the report of a model on a mesh in test_compiling.py
def test_the_report_has_the_same_sum() -> None:
    config = MixtralConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=256, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=64,
    )  # fmt: skip
    tokens = torch.empty(2, 16, dtype=torch.int64, device="meta")
    report = compile_for(
        lambda: MixtralForCausalLM(config), {"input_ids": tokens}, topology="v6e", tp=4, dtype="bfloat16"
    )
    here = tpuport.create_mesh(tp=4, devices=jax.devices()[:4])
    ported = tpuport.port(MixtralForCausalLM(config).eval(), mesh=here, dtype="bfloat16")
    arrays = {id(array): array for array in collect_weights(ported).values()}.values()
    assert report.memory.weights == sum(array.addressable_shards[0].data.nbytes for array in arrays)
    assert report.weight_bytes == sum(array.nbytes for array in arrays)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(PortError, match="neither a model nor a function"):
        build_model("model")
    with pytest.raises(PortError, match="built an object of class dict"):
        build_model(dict)


def test_shared_parameters_stay_shared_and_nothing_is_allocated() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(8, 8)
            self.second = torch.nn.Linear(8, 8)
            self.second.weight = self.first.weight
            self.register_buffer("there", torch.ones(3))

    model = build_model(Tied)
    assert model.second.weight is model.first.weight
    assert {one.device.type for one in model.parameters()} == {"meta"}
    assert model.there.tolist() == [1, 1, 1]
    assert isinstance(model.first.weight, torch.nn.Parameter)
    assert torch.nn.Linear(2, 2).weight.device.type == "cpu"


def test_a_parameter_larger_than_the_host_is_not_made() -> None:
    class Huge(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(1 << 14, 1 << 14, 1 << 12, dtype=torch.bfloat16))
            self.register_buffer("small", torch.empty(4).fill_(2.0))

    model = build_model(Huge)
    assert model.weight.shape == (1 << 14, 1 << 14, 1 << 12)
    assert model.small.tolist() == [2, 2, 2, 2]


def test_a_function_that_fails_is_named_with_its_line() -> None:
    def build() -> torch.nn.Module:
        raise ValueError("my config is wrong")

    with pytest.raises(PortError, match="my config is wrong") as caught:
        build_model(build)
    assert __file__ in caught.value.where


def test_a_library_that_refuses_its_arguments_is_told_at_the_users_line() -> None:
    def build() -> torch.nn.Module:
        return torch.nn.Linear(-3, 4)

    with pytest.raises(
        PortError, match="RuntimeError: Trying to create tensor with negative dimension"
    ) as caught:
        build_model(build)
    assert caught.value.where == f"{__file__}, line {build.__code__.co_firstlineno + 1}"
    assert "\n" not in caught.value.what


def test_what_fails_without_code_of_the_users_is_at_no_line_of_tpuports() -> None:
    with pytest.raises(PortError, match="negative dimension") as caught:
        build_model(functools.partial(torch.nn.Linear, -3, 4))
    assert caught.value.where == "model"
