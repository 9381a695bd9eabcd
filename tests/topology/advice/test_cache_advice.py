"""Rules about caches: those that devices send each other, that are not donated, or that grow with each call."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.sharding import PartitionSpec
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import tpuport
from tpuport.sharding import ShardingRules
from tpuport.topology import Decode, Prefill, compile_for, compiling, described
from tpuport.topology.advice import advise
from tpuport.topology.advice.cache_inputs import name_inputs
from tpuport.topology.advice.remedy_texts import minimum_device_bytes

ROWS, HEADS, SLOTS, DIM, LAYERS = 4, 8, 2048, 64, 2
WIDTH = 2 * HEADS * DIM  # two query heads for each of keys and values
BYTES = ROWS * HEADS * SLOTS * DIM * 2  # of keys, or of values, of a layer


def attended(weights, x, keys, values, at):
    """One layer: x [B, E], keys and values [B, K, T, D] with a position written at `at`."""

    def new(name):
        return (x @ weights[name]).reshape(ROWS, HEADS, -1, DIM)

    keys = jax.lax.dynamic_update_slice(keys, new("k.weight"), (0, 0, at, 0))
    values = jax.lax.dynamic_update_slice(values, new("v.weight"), (0, 0, at, 0))
    scores = jnp.einsum("bkqd,bktd->bkqt", new("q.weight"), keys).astype(jnp.float32)
    out = jnp.einsum("bkqt,bktd->bkqd", jax.nn.softmax(scores).astype(x.dtype), values)
    return x + out.reshape(ROWS, WIDTH) @ weights["o.weight"], keys, values


def in_turn(weights, x, keys, values, at):
    made = []
    for each in zip(keys, values, strict=True):
        x, *written = attended(weights, x, *each, at)
        made.append(written)
    return x, made


def in_a_loop(weights, x, keys, values, at):
    def body(place, carry):
        x, keys, values = carry
        x, key, value = attended(weights, x, keys[place], values[place], at)
        put = functools.partial(jax.lax.dynamic_update_index_in_dim, index=place, axis=0)
        return x, put(keys, key), put(values, value)

    return jax.lax.fori_loop(0, LAYERS, body, (x, keys, values))


def step(mesh, function, *spec, given=(2, 3)):
    """Evidence for a step whose weights share out heads, and whose cache lies as the spec says."""
    weights = {f"{name}.weight": mesh.array((WIDTH, HEADS * DIM), None, "tp") for name in "kv"}
    weights["q.weight"] = mesh.array((WIDTH, WIDTH), None, "tp")
    weights["o.weight"] = mesh.array((WIDTH, WIDTH), "tp", None)
    shape = (ROWS, HEADS, SLOTS, DIM)
    looped = function is in_a_loop
    cache = mesh.array((LAYERS, *shape), None, *spec) if looped else [mesh.array(shape, *spec)] * LAYERS
    return mesh.evidence(
        function, weights, mesh.array((ROWS, WIDTH)), cache, cache, mesh.array((), dtype=jnp.int32), donated=given
    )  # fmt: skip


FORMS = [in_turn, pytest.param(in_a_loop, marks=pytest.mark.slow)]


@pytest.mark.parametrize("function", FORMS)
def test_a_cache_that_is_divided_through_its_heads_is_sent(programs, function) -> None:
    [finding] = advise(step(programs(tp=4), function, None, None, None, "tp"))
    assert (finding.rule, finding.unit) == ("TPC019", "bytes sent")
    # What the compiler does: keys of both layers change places, a quarter of them on each device, as do new keys
    # and values, 4 rows of a quarter.
    assert finding.cost == LAYERS * BYTES / 4 + 2 * LAYERS * ROWS * HEADS * DIM * 2 / 4
    assert "2 all-to-alls a step of the cache" in finding.message
    assert "4 all-to-alls a step of new keys and values" in finding.message
    assert (
        "given as PartitionSpec(None, None, None, " in finding.message
        or "None, None, None, None, 'tp'" in finding.message
    )
    assert "PartitionSpec('dp', 'tp')" in finding.remedy
    assert finding.source is not None
    assert finding.source.function == "attended"


@pytest.mark.parametrize("function", FORMS)
def test_a_cache_that_lies_as_its_heads_do_is_not(programs, function) -> None:
    assert advise(step(programs(tp=4), function, None, "tp")) == ()


@pytest.mark.slow  # a cache that is divided through its heads, above
def test_new_keys_that_go_to_a_cache_over_positions_are_few_bytes_and_a_finding(programs) -> None:
    [finding] = advise(step(programs(tp=4), in_turn, None, None, "tp"))
    assert finding.rule == "TPC019"
    assert finding.message.startswith(
        "4 all-gathers a step of new keys and values on their way into the cache"
    )
    assert finding.cost == 2 * LAYERS * ROWS * HEADS * DIM * 2


@pytest.mark.slow  # weights gathered in each step, in test_sharding_advice.py
def test_a_cache_over_the_weights_axis_by_its_rows_is_named_where_weights_are_gathered(programs) -> None:
    findings = advise(step(programs(tp=4), in_turn, "tp"))
    gathered = [one for one in findings if one.rule == "TPC013"]
    assert gathered
    for one in gathered:
        assert "as keys and values [4, 8, 2048, 64], given as PartitionSpec('tp')," in one.message
        assert one.remedy.startswith("pass the cache with its heads over the weights' axis")


@pytest.mark.slow
def test_a_rule_that_cuts_through_a_head_has_one_finding(advice, llama, llama_config) -> None:
    config = LlamaConfig(
        **llama_config.to_dict() | {"num_key_value_heads": 2, "max_position_embeddings": 2048}
    )
    rules = ShardingRules.from_model(llama())
    cut = rules.override({r".*\.(k|v)_proj\.weight": PartitionSpec("tp", None)})
    decode = Decode(batch=2, max_cache_len=2048)
    [finding] = advice(lambda: LlamaForCausalLM(config), decode, rules=cut, allow=(".*",))
    assert finding.rule == "TPC007"
    assert "a step put keys and values together" in finding.message
    [finding] = advice(lambda: LlamaForCausalLM(config), decode)
    assert finding.rule == "TPC007"
    assert "put keys and values together" not in finding.message


@pytest.mark.slow
@pytest.mark.parametrize("task", [Decode(batch=8, max_cache_len=1024), Prefill(batch=4, length=256)])
@pytest.mark.parametrize("mesh", [{"tp": 4}, {"dp": 4}, {"dp": 2, "tp": 2}], ids=str)
def test_what_generate_runs_gathers_no_cache(advice, llama, task, mesh) -> None:
    assert advice(llama, task, **mesh) == ()


class Stepping(torch.nn.Module):
    """A layer of one's own: x [B, 1, E] and pairs of keys and values [B, K, T, D], which come back."""

    def __init__(self, grows: bool = False) -> None:
        super().__init__()
        self.grows = grows
        for name in ("q", "k", "v", "o"):
            self.add_module(name, torch.nn.Linear(512, 512, bias=False))

    def put(self, kept: torch.Tensor, new: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        return torch.cat([kept, new], 2) if self.grows else kept.index_copy(2, position, new)

    def forward(self, x: torch.Tensor, memory: list, position: torch.Tensor) -> tuple:
        q, k, v = (self.get_submodule(name)(x).unflatten(2, (8, 64)).transpose(1, 2) for name in "qkv")
        keys, values = self.put(memory[0], k, position), self.put(memory[1], v, position)
        out = torch.nn.functional.scaled_dot_product_attention(q, keys, values)
        return x + self.get_submodule("o")(out.transpose(1, 2).flatten(2)), [keys, values]


def stepping(models, slots: int = 2048) -> dict:
    kept = [models.meta(4, 8, slots, 64) for _ in range(2)]
    return {"x": models.meta(4, 1, 512), "memory": kept, "position": models.meta(1, dtype=torch.int32)}


HELD = 2 * 4 * 8 * 2048 * 64 * 2


def test_inputs_that_come_back_overwritten_are_a_cache_whatever_they_are_called(advice, models) -> None:
    [finding] = advice(Stepping, stepping(models), dp=4, tp=1)
    assert finding.rule == "TPC009"
    assert finding.message.startswith(
        "2 arrays of memory, 16 MiB a device, come back with a part overwritten"
    )
    assert finding.cost == 2 * HELD
    assert "tpuport.compile(..., donate=[...])" in finding.remedy


@pytest.mark.slow  # a cache that is donated, in test_memory_advice.py, is no finding either
def test_less_than_a_mebibyte_that_comes_back_is_all_right(advice, models) -> None:
    assert advice(Stepping, stepping(models, slots=64), dp=4, tp=1) == ()


@pytest.mark.slow  # the inputs that come back overwritten above
def test_a_cache_that_comes_back_in_another_place_says_which(advice, models) -> None:
    findings = advice(Stepping, stepping(models), rules=models.rules(models.ATTENDING))
    assert [one.rule for one in findings] == ["TPC009"]
    assert f"{HELD >> 20} MiB a device" in findings[0].message
    assert "each step allocates 4 MiB beside them" in findings[0].message
    assert "NamedSharding(mesh, PartitionSpec(None, 'tp'))" in findings[0].remedy


@pytest.mark.slow  # a cache that lies as its heads do, and inputs that come back, above
def test_donated_inputs_are_all_right(programs) -> None:
    mesh = programs(tp=4)
    findings = advise(step(mesh, in_turn, None, "tp", given=()))
    assert [one.rule for one in findings] == ["TPC009"]
    assert findings[0].cost == 2 * 2 * LAYERS * BYTES / 4
    assert "4 arrays of keys and values, 8 MiB a device" in findings[0].message
    assert advise(step(mesh, in_turn, None, "tp")) == ()


def test_what_compile_donates_is_what_the_remedy_says() -> None:
    """A cache of transformers, and no other tensors: read off the program that `tpuport.compile` makes."""
    config = LlamaConfig(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, hidden_size=16)

    def write(keys, cache, position):
        layer = cache.layers[0]
        layer.keys = layer.keys.index_copy(2, position, keys[:, :, :1])
        return keys.index_copy(2, position, keys[:, :, :1]), cache

    cache = StaticCache(config=config, max_cache_len=16)
    cache.early_initialization(1, 2, 8, torch.float32, torch.device("cpu"))
    keys, position = torch.zeros(1, 2, 16, 8), torch.zeros(1, dtype=torch.int32)
    lowered = tpuport.compile(write).lower(keys, cache, position)
    donated = [
        leaf for leaf in jax.tree.leaves(lowered.args_info) if leaf.donated and leaf.shape == keys.shape
    ]
    others = [
        leaf for leaf in jax.tree.leaves(lowered.args_info) if not leaf.donated and leaf.shape == keys.shape
    ]
    assert (len(donated), len(others)) == (2, 1)


@pytest.mark.slow  # the memory that comes back overwritten above
def test_a_cache_that_grows_is_compiled_for_each_token(advice, models) -> None:
    [finding] = advice(functools.partial(Stepping, grows=True), stepping(models), dp=4, tp=1)
    assert finding.rule == "TPC020"
    assert "2 arrays of memory come back longer by 1" in finding.message
    assert finding.cost == 2 * HELD


@pytest.fixture(scope="module")
def whole_heads(llama_config):
    """Compiles a decode step with two key/value heads for a mesh; the evidence."""
    config = LlamaConfig(
        **llama_config.to_dict() | {"num_key_value_heads": 2, "max_position_embeddings": 2048}
    )
    decode = Decode(batch=2, max_cache_len=2048)

    @functools.cache
    def compiled(**mesh):
        found = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiling, "advise", lambda evidence: found.append(evidence) or ())
            compile_for(lambda: LlamaForCausalLM(config), decode, topology="v6e", dtype="bfloat16", **mesh)
        return found[0]

    return compiled


@pytest.mark.slow
def test_a_mesh_is_proposed_where_weights_and_cache_fit(whole_heads) -> None:
    now, then = whole_heads(tp=4), whole_heads(dp=2, tp=2)
    # The real program on the mesh that is proposed holds what the arithmetic says, and has no finding.
    memory = then.report.memory
    assert minimum_device_bytes(now, dp=2, tp=2) == memory.weights + memory.cache
    [finding] = advise(now)
    assert "tpuport.create_mesh(dp=2, tp=2) (--dp 2 --tp 2)" in finding.remedy
    assert "--sp" not in finding.remedy, "a decode step has one token a row"
    assert advise(then) == ()


@pytest.mark.slow  # heads that do not divide, in test_sharding_advice.py
def test_no_mesh_is_proposed_whose_devices_cannot_hold_it(whole_heads) -> None:
    now = whole_heads(tp=4)
    # Two norms a layer and the last one, two of rotary frequencies in float32, and all else over tp=2.
    norms, frequencies = 5 * 512 * 2, 2 * 32 * 4
    matrices = 2 * 8192 * 512 + 2 * (2 * 512 * 512 + 2 * 128 * 512 + 3 * 512 * 2048)
    # Keys and values of two layers: a row and a head of the two, for each device.
    needed = norms + frequencies + matrices * 2 // 2 + 2 * 2 * 2048 * 64 * 2

    def remedy(capacity):
        memory = dataclasses.replace(now.report.memory, capacity=capacity, used=capacity * 9 // 10)
        [finding] = advise(dataclasses.replace(now, report=dataclasses.replace(now.report, memory=memory)))
        return finding.remedy

    assert "create_mesh(dp=2, tp=2)" in remedy(needed)
    assert "create_mesh" not in remedy(needed - 1)
    assert "keep tp=4 and the key/value heads whole, with a shorter cache" in remedy(needed - 1)


@pytest.mark.slow  # heads that do not divide, in test_sharding_advice.py
def test_norms_are_no_weights_of_attention(whole_heads) -> None:
    [finding] = advise(whole_heads(tp=4))
    # Keys' and values' projections of two layers: 2 heads of 64 out of a width of 512.
    assert "4 weights of attention, 512 KiB" in finding.message


def test_inputs_have_the_names_of_their_arguments(programs) -> None:
    mesh = programs(dp=4)
    inputs = {
        "b": [torch.empty(1, device="meta"), 3, {"c": torch.empty(2, device="meta")}],
        "a": torch.empty(3),
    }
    evidence = mesh.evidence(lambda weights, x: x, {}, mesh.array((8, 8)), inputs=inputs)
    found = name_inputs(evidence)
    assert [(name, one.name, tuple(one.value.shape)) for name, one in found.items()] == [
        ("plain_arrays[0]", "a", (3,)), ("plain_arrays[1]", "b.0", (1,)), ("plain_arrays[2]", "b.2.c", (2,)),
    ]  # fmt: skip
    assert not any(value.in_cache for value in found.values())
    assert described("v6e").devices
