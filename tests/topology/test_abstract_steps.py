"""Prefill and decode as they are traced: generate's own programs, with shapes from the config's arithmetic."""

import jax
import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    StaticCache,
)

import tpuport
from tests.cache_names import CACHE
from tpuport.errors import PortError
from tpuport.topology import abstract_steps, compile_for, described
from tpuport.topology.abstract_weights import abstract_weights, build_model, local_nbytes
from tpuport.topology.generation_tasks import Decode, Prefill

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")

CONFIG = LlamaConfig(
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=512, max_position_embeddings=256,
)  # fmt: skip


def _made(task, config=CONFIG, kind=LlamaForCausalLM, dtype=None, **axes):
    mesh = tpuport.create_mesh(**axes, devices=described("v6e").devices)
    model = build_model(lambda: kind(config))
    weights = abstract_weights(model, mesh, None, dtype, ())
    make = abstract_steps.prefill if isinstance(task, Prefill) else abstract_steps.decode
    return model, mesh, make(model, task, weights, mesh)


def _cache_bytes(config, rows: int, slots: int) -> int:
    head = config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head * rows * slots * 4


@pytest.mark.parametrize("task", [Decode(4, 64), Prefill(4, 64), Prefill(4, 33, 64)], ids=str)
def test_the_cache_is_as_large_as_the_config_says_and_shared_out(task) -> None:
    _, _, step = _made(task, dp=2, tp=2)
    assert sum(local_nbytes(one) for one in step.cache) == _cache_bytes(CONFIG, 4, 64) // 4
    assert step.units == ("tokens", 4.0 if isinstance(task, Decode) else 4.0 * task.length)


def test_heads_that_tp_does_not_divide_are_on_every_chip() -> None:
    _, _, step = _made(Decode(1, 64), tp=4)
    assert sum(local_nbytes(one) for one in step.cache) == _cache_bytes(CONFIG, 1, 64)


def test_a_batch_is_filled_up_as_generate_does() -> None:
    _, _, step = _made(Decode(3, 64), dp=4)
    assert step.arguments[1].tokens.shape == (4, 64)
    assert step.units == ("tokens", 3.0)


STATES = Mamba2Config(
    hidden_size=64, num_hidden_layers=2, num_heads=8, head_dim=16, n_groups=1, state_size=16, chunk_size=16,
    vocab_size=512,
)  # fmt: skip


def test_states_of_a_recurrence_are_shared_out() -> None:
    """[B, 8 heads, 16, 16] and [B, 160 channels, 4] in each layer, a quarter of each on a chip."""
    _, _, step = _made(Decode(2, 64), STATES, Mamba2ForCausalLM, dp=2, tp=2)
    elements = 8 * 16 * 16 + (128 + 2 * 16) * 4
    assert sum(local_nbytes(one) for one in step.cache) == 2 * elements * 2 * 4 // 4


@pytest.mark.parametrize(("config", "kind"), [(CONFIG, LlamaForCausalLM), (STATES, Mamba2ForCausalLM)])
def test_a_decode_step_gives_back_what_it_takes(config, kind) -> None:
    model, mesh, step = _made(Decode(2, 64), config, kind, dp=2, tp=2)
    with abstract_steps.on_mesh(model, mesh):
        after = jax.eval_shape(step.function, *step.arguments)
    before = [(x.shape, x.dtype) for x in jax.tree.leaves(step.arguments[1])]
    assert [(x.shape, x.dtype) for x in jax.tree.leaves(after)] == before
    assert step.donated == (1,)


def test_sliding_windows_keep_their_window() -> None:
    config = Gemma3TextConfig(
        hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        head_dim=64, vocab_size=128, sliding_window=32, max_position_embeddings=256,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    _, _, step = _made(Decode(2, 128), config, Gemma3ForCausalLM, dp=2, tp=2)
    assert sorted(one.shape[2] for one in step.cache) == [32, 32, 128, 128]


def test_bad_tasks_are_refused_before_work() -> None:
    with pytest.raises(PortError, match="batch is 0"):
        Decode(0)
    with pytest.raises(PortError, match="longer than the cache"):
        Prefill(1, 64, 32)
    with pytest.raises(PortError, match="has 256 positions"):
        _made(Decode(1, 512), tp=4)
    with pytest.raises(PortError, match="has 256 positions"):
        _made(Prefill(1, 64, 512), tp=4)


@pytest.mark.slow  # a decode step overwrites its cache, in this file
def test_the_loop_of_a_generation_holds_its_cache_once() -> None:
    """XLA would copy the whole cache into a layout of its own before the loop: a step alone does not show it."""
    config = LlamaConfig(
        hidden_size=2048, intermediate_size=512, num_hidden_layers=1, num_attention_heads=16, num_key_value_heads=16,
        vocab_size=512, max_position_embeddings=4096, dtype="bfloat16",
    )  # fmt: skip
    model, mesh, step = _made(Decode(8, 4096), config, dtype=torch.bfloat16, tp=4)
    weights, state, keys, columns = step.arguments
    decoder = abstract_steps._decoder(model, mesh)
    limit = jax.ShapeDtypeStruct((), jax.numpy.int32, sharding=columns.sharding)

    def loop(weights, state, keys, columns, limit):
        return decoder.run_loop(weights, state, keys, columns, limit, abstract_steps._greedy_settings())

    with abstract_steps.on_mesh(model, mesh):
        program = jax.jit(loop, donate_argnums=1).trace(weights, state, keys, columns, limit)
        said = program.lower(lowering_platforms=("tpu",)).compile().memory_analysis()
    cache = sum(local_nbytes(one) for one in step.cache)
    assert said.alias_size_in_bytes >= cache
    assert said.temp_size_in_bytes < cache / 4


@pytest.mark.slow  # the loop above, and the cache of a call on one chip below
@pytest.mark.usefixtures("usual_effort")
@pytest.mark.parametrize("rows", [1, 2])
def test_a_decode_step_of_one_chip_overwrites_its_cache(rows: int) -> None:
    model = build_model(lambda: LlamaForCausalLM(CONFIG))
    mesh = tpuport.create_mesh(devices=described("v6e:1x1").devices)
    step = abstract_steps.decode(
        model, Decode(rows, 256), abstract_weights(model, mesh, None, None, ()), mesh
    )
    with abstract_steps.on_mesh(model, mesh):
        program = jax.jit(step.function, donate_argnums=step.donated).trace(*step.arguments)
        said = program.lower(lowering_platforms=("tpu",)).compile().memory_analysis()
    cache = sum(local_nbytes(one) for one in step.cache)
    assert said.alias_size_in_bytes >= cache
    assert said.temp_size_in_bytes < cache


def _own_cache(rows: int) -> StaticCache:
    cache = StaticCache(config=CONFIG, max_cache_len=64)
    heads, head = CONFIG.num_key_value_heads, CONFIG.hidden_size // CONFIG.num_attention_heads
    cache.early_initialization(rows, heads, head, torch.float32, torch.device("cpu"))
    return cache


def test_a_cache_among_the_inputs_of_a_call_is_donated_as_compiled_functions_do() -> None:
    inputs = {"input_ids": torch.zeros(2, 1, dtype=torch.int32), CACHE: _own_cache(2)}
    report = compile_for(lambda: LlamaForCausalLM(CONFIG), inputs, topology="v6e:1x1")
    assert report.memory.cache == _cache_bytes(CONFIG, 2, 64)
    assert report.program is not None
    assert report.program.memory_analysis().alias_size_in_bytes >= report.memory.cache
    assert not [finding for finding in report.advice if finding.rule == "TPC009"]


def test_described_tensors_in_lists_keep_their_places() -> None:
    class Sum(torch.nn.Module):
        def forward(self, pairs):
            return sum(pairs)

    mesh = tpuport.create_mesh(dp=4, devices=described("v6e").devices)
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("dp"))
    one = jax.ShapeDtypeStruct((8, 128), jax.numpy.float32, sharding=place)
    step = abstract_steps.forward(Sum(), {"pairs": (one, one)}, {}, mesh)
    assert [x.sharding.spec for x in jax.tree.leaves(step.arguments[1])] == [place.spec] * 2
