"""Models compiled for a described TPU: what the report says, against arithmetic, and what is refused."""

import functools
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
import torch
from diffusers.models.transformers.transformer_hunyuan_video15 import HunyuanVideo15Transformer3DModel
from jax.experimental.compilation_cache import compilation_cache
from transformers import LlamaConfig, LlamaForCausalLM

import tpuport
from benchmarks import hunyuan_compile
from tpuport.errors import PortError
from tpuport.hardware import compiled, compiler_options
from tpuport.patches import registry
from tpuport.sharding import ShardingRules
from tpuport.topology import Decode, Prefill, compile_for, compiling, described, lower_for
from tpuport.trace_errors import CannotTrace

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
GIB = 1 << 30


class Attending(torch.nn.Module):
    """Attention, and a linear layer of E = 256 that a rule can cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(256, 1024, bias=False)
        self.second = torch.nn.Linear(1024, 256, bias=False)
        self.register_buffer("scale", torch.ones(256))

    def forward(self, x: torch.Tensor, twice: bool = False) -> torch.Tensor:
        q = x.unflatten(2, (2, 128)).transpose(1, 2)
        out = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        out = out.transpose(1, 2).flatten(2) * self.scale
        return self.second(self.first(out)) * (2 if twice else 1)


RULES = ShardingRules(
    {
        r"first\.weight": jax.sharding.PartitionSpec("tp"),
        r"second\.weight": jax.sharding.PartitionSpec(None, "tp"),
    }
)
TOKENS = 1024


@pytest.fixture(scope="module")
def report():
    x = torch.empty(1, TOKENS, 256, dtype=torch.bfloat16, device="meta")
    return compile_for(
        Attending, {"x": x, "twice": True}, topology="v6e", sp=2, tp=2, rules=RULES, dtype="bfloat16"
    )


def test_weights_and_shapes_are_those_of_the_mesh(report) -> None:
    assert (report.topology, report.generation, report.devices) == ("v6e:2x2", "v6e", 4)
    assert report.mesh == {"dp": 1, "sp": 2, "tp": 2}
    assert (report.model, report.parameters) == ("Attending", 2 * 256 * 1024)
    assert report.weight_bytes == 2 * 2 * 256 * 1024 + 2 * 256
    assert report.memory.weights == 2 * 256 * 1024 + 2 * 256
    assert report.inputs == {"x": "bfloat16[1,1024,256]", "twice": "True"}


def test_memory_adds_up_and_is_compared_with_the_device(report) -> None:
    memory = report.memory
    parts = (
        memory.weights + memory.cache + memory.arguments + memory.outputs + memory.temporaries + memory.code
    )
    assert memory.used == parts
    assert memory.capacity == 31996 << 20, "as large as arguments, outputs and code have been compiled"
    assert report.fits
    assert memory.outputs == TOKENS * 256 * 2 // 2, "as attention leaves it over sp"


def test_flops_of_the_kernel_and_the_layers_are_those_of_arithmetic(report) -> None:
    # tp shares out the heads and the width; sp the queries, and what comes of them.
    attention = 4 * TOKENS**2 * 256 / 4
    layers = 2 * 2 * TOKENS * 256 * 1024 / 4
    assert report.costs.flops == pytest.approx(attention + layers, rel=0.01)
    assert report.costs.model_flops == pytest.approx(attention + layers, rel=0.01)


def test_attention_is_the_kernel_and_the_program_says_what_devices_send(report) -> None:
    [(call, times)] = report.attention
    assert (call.implementation, times) == ("flash", 1)
    assert "1024 queries over sp=2" in call.mesh
    assert "tpu_custom_call" in report.program.as_text()
    assert report.memory.temporaries < TOKENS**2, "less than a boolean mask of the scores"
    [reduced] = [collective for collective in report.collectives if collective.kind == "all-reduce"]
    assert (reduced.count, reduced.axes, reduced.group) == (1, ("tp",), 2)
    assert reduced.nbytes >= TOKENS * 256 * 2 / 2
    assert reduced.source.file == __file__
    assert "self.second" in reduced.source.code


def test_the_report_is_plain_values(report) -> None:
    plain = report.to_dict()
    assert json.loads(json.dumps(plain))["memory"]["fits"] is True
    assert all(buffer["nbytes"] >= 1 << 16 for buffer in plain["buffers"])
    assert "program" not in plain
    assert "seconds" not in plain, "the same for every run"


@pytest.mark.slow
def test_a_program_that_does_not_fit_has_a_report_that_says_so() -> None:
    x = jax.ShapeDtypeStruct((1, 1 << 22, 4096), jnp.bfloat16)
    report = compile_for(
        lambda: torch.nn.Linear(4096, 4096), {"input": x}, topology="v5e", dp=4, dtype="bfloat16"
    )
    assert not report.fits
    assert report.costs is None, "one array is larger than the memory: there is no program at all"
    assert report.estimate is None
    assert report.memory.used > report.memory.capacity
    assert report.failure.kind == "memory"
    assert "RESOURCE_EXHAUSTED" in report.failure.traceback
    assert report.to_dict()["memory"]["fits"] is False


@pytest.mark.slow  # memory/test_oversize.py
def test_what_takes_the_memory_is_said_with_its_lines() -> None:
    class Wide(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            scores = torch.einsum("qd,kd->qk", x, x)
            return scores.exp(), scores.flip(0), scores.flip(1), scores.sin()

    x = torch.empty(3 << 14, 128, dtype=torch.bfloat16, device="meta")
    report = compile_for(Wide, {"x": x}, topology="v5e:1x1")
    assert not report.fits
    assert report.memory.used > report.memory.capacity
    assert report.memory.outputs == pytest.approx(4 * 2 * (3 << 14) ** 2, rel=1e-3)
    assert report.failure.source.file == __file__
    assert "scores" in report.failure.source.code
    assert report.failure.buffers[0].nbytes >= 2**32
    assert report.costs.flops > 0


class Block(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.gelu(torch.nn.functional.linear(x, self.weight, self.bias))


class Deep(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(256, 256) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.slow  # the loops of timing/test_profiles.py and hlo/test_flop_counts.py
def test_identical_blocks_are_in_a_loop_and_count_as_often_as_it_runs() -> None:
    x = torch.empty(256, 256, dtype=torch.bfloat16, device="meta")
    made = [
        compile_for(Deep, {"x": x}, topology="v5e:1x1", dtype="bfloat16", scan_layers=scan)
        for scan in (None, False)
    ]
    assert [[(one.name, one.count) for one in report.scanned] for report in made] == [[("blocks", 8)], []]
    for report in made:
        assert report.costs.model_flops == 8 * 2 * 256**3
        assert report.costs.product_flops == pytest.approx(8 * 2 * 256**3)
    assert made[0].memory.weights == made[1].memory.weights
    assert made[0].costs.flops == pytest.approx(made[1].costs.flops, rel=0.05)


def test_what_does_not_fit_in_a_loop_is_compiled_without(monkeypatch: pytest.MonkeyPatch) -> None:
    compile = compiling._compile

    def refusing(lowered, effort):
        if lowered.scanned:
            return compiling.Compilation(None, jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: in a loop"))
        return compile(lowered, effort)

    monkeypatch.setattr(compiling, "_compile", refusing)
    x = torch.empty(256, 256, dtype=torch.bfloat16, device="meta")
    report = compile_for(Deep, {"x": x}, topology="v5e:1x1", dtype="bfloat16")
    assert report.fits
    assert report.scanned == ()
    asked = compile_for(Deep, {"x": x}, topology="v5e:1x1", dtype="bfloat16", scan_layers=True)
    assert not asked.fits


def test_inputs_that_are_sharded_share_out_the_work() -> None:
    mesh = tpuport.create_mesh(dp=4, devices=described("v6e").devices)
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("dp"))
    whole = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
    split = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16, sharding=rows)
    work = [
        compile_for(
            lambda: torch.nn.Linear(256, 256), {"input": x}, topology="v6e", mesh=mesh, dtype="bfloat16"
        ).costs.product_flops
        for x in (whole, split)
    ]
    assert work == [2 * 256**3, 2 * 256**3 / 4]


def test_weights_that_a_step_does_not_use_take_room_too() -> None:
    class Idle(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(128, 128)
            self.idle = torch.nn.Parameter(torch.empty(20, 1 << 30, dtype=torch.bfloat16, device="meta"))

    report = compile_for(Idle, {"input": torch.empty(8, 128, device="meta")}, topology="v5e:1x1")
    assert report.memory.weights > 40 * GIB
    assert not report.fits
    assert report.memory.used is None or report.memory.used > report.memory.capacity


def test_bad_input_is_refused() -> None:
    x = torch.empty(1, 8, 256)
    with pytest.raises(PortError, match="neither a model nor a function"):
        compile_for("model", {"x": x})
    with pytest.raises(PortError, match="built an object of class dict"):
        compile_for(dict, {"x": x})
    with pytest.raises(PortError, match="needs 3 devices"):
        compile_for(Attending, {"x": x}, topology="v6e", tp=3)
    with pytest.raises(PortError, match="matches no parameter"):
        compile_for(
            Attending, {"x": x}, topology="v6e", tp=4, rules=ShardingRules({"third": RULES[r"first\.weight"]})
        )


def test_the_models_own_place_is_restored() -> None:
    with torch.device("meta"):
        model = Attending()
    with pytest.raises(PortError, match="matches no parameter"):
        compile_for(
            model,
            {"x": torch.empty(1, 8, 256)},
            topology="v6e",
            tp=4,
            rules=ShardingRules({"a": RULES[r"first\.weight"]}),
        )
    assert getattr(model, "tpuport_mesh", None) is None


@pytest.fixture(scope="module")
def decoded():
    config = LlamaConfig(
        hidden_size=512, intermediate_size=1024, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=1024, max_position_embeddings=256,
    )  # fmt: skip
    return [
        compile_for(lambda: LlamaForCausalLM(config), task, topology="v6e", tp=4, dtype="bfloat16")
        for task in (Decode(2, 128), Prefill(2, 128))
    ]


def test_a_step_of_decoding_and_a_prompt_hold_weights_and_cache(decoded) -> None:
    numbers = 2 * 1024 * 512 + (4 * 512**2 + 3 * 512 * 1024 + 2 * 512) + 512
    for report, task in zip(decoded, ("decode", "prefill"), strict=True):
        assert (report.task, report.parameters) == (task, numbers)
        assert report.memory.weights == pytest.approx(2 * numbers / 4, rel=0.01)
        assert report.memory.cache == 2 * 2 * 128 * 512 * 2 // 4
        assert report.fits
        assert report.advice == ()


def test_a_step_of_decoding_writes_no_more_of_its_cache_than_a_column() -> None:
    config = LlamaConfig(
        hidden_size=512, intermediate_size=512, num_hidden_layers=1, num_attention_heads=4, vocab_size=256,
        max_position_embeddings=1024,
    )  # fmt: skip
    step = Decode(1, 1024)
    report = compile_for(
        lambda: LlamaForCausalLM(config), step, topology="v6e:1x1", dtype="bfloat16", effort=0.0
    )
    # Keys written back whole would be another 17%.
    assert report.costs.hbm_bytes <= report.memory.weights + report.memory.cache


def test_the_collectives_are_two_a_layer_with_those_of_embedding_and_logits(decoded) -> None:
    for report in decoded:
        assert {collective.axes for collective in report.collectives} == {("tp",)}
        assert sum(collective.count for collective in report.collectives) == 2 + 1 + 2
        lines = {collective.source.code for collective in report.collectives if collective.source}
        assert any("self.o_proj" in line for line in lines)
        assert any("self.down_proj" in line for line in lines)
        assert any("embed_tokens" in line for line in lines)
        assert any(
            collective.source.file.endswith("sampling.py")
            for collective in report.collectives
            if collective.source
        )


@pytest.mark.slow  # the collectives above, and the shares of a cache in test_abstract_steps.py
def test_rows_and_heads_of_the_cache_stay_shared_out() -> None:
    config = LlamaConfig(
        hidden_size=1024, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=8,
        vocab_size=512, max_position_embeddings=1024,
    )  # fmt: skip
    report = compile_for(
        lambda: LlamaForCausalLM(config), Decode(8, 1024), topology="v6e", dp=2, tp=2, dtype="bfloat16"
    )
    assert {collective.axes for collective in report.collectives} == {("tp",)}
    assert sum(collective.nbytes for collective in report.collectives) < 1e6, "no cache is gathered"


@pytest.mark.slow  # timing/test_profiles.py has two runs, whose profiles are equal
@pytest.mark.parametrize("anew", [False, True])
def test_two_runs_give_the_same_plain_values(decoded, anew: bool) -> None:
    config = LlamaConfig(
        hidden_size=512, intermediate_size=1024, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=1024, max_position_embeddings=256,
    )  # fmt: skip
    if anew:
        jax.clear_caches()
    again = compile_for(
        lambda: LlamaForCausalLM(config), Decode(2, 128), topology="v6e", tp=4, dtype="bfloat16"
    )
    assert json.dumps(again.to_dict()) == json.dumps(decoded[0].to_dict())


def test_programs_are_compiled_with_the_options_of_their_generation() -> None:
    stage = SimpleNamespace(compile=lambda compiler_options: compiler_options)
    for task in ("forward", "decode"):
        lowered = SimpleNamespace(generation="v6e", task=task, stage=stage)
        of_task = compiler_options("v6e", updates_cache=task == "decode")
        assert compiling._run_compiler(lowered, None, {}) == of_task
        for effort, level in ((-1, 9), (-0.5, 19), (0, 29), (1, 39)):
            options = compiling._run_compiler(lowered, effort, {})
            assert options == {"optimization_level": level, **of_task}


def test_a_model_that_cannot_be_traced_says_where() -> None:
    class Reading(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:
                return x
            return -x

    with pytest.raises(CannotTrace) as said:
        compile_for(Reading, {"x": torch.empty(1, 8)}, topology="v6e", tp=1, dp=4)
    failure = said.value.failure
    assert failure.kind == "trace"
    assert failure.source.file == __file__
    assert "if x.sum() > 0" in failure.source.code


def test_attention_can_be_chosen() -> None:
    x = torch.empty(1, TOKENS, 256, dtype=torch.bfloat16, device="meta")
    made = lower_for(Attending, {"x": x}, topology="v6e", tp=4, attention="xla", dtype="bfloat16")
    assert [call.implementation for call, _ in made.attention] == ["xla"]
    assert len(made.key) == 64
    other = lower_for(Attending, {"x": x}, topology="v6e", dp=4, attention="xla", dtype="bfloat16")
    assert other.key != made.key


def test_programs_of_a_described_tpu_are_kept_out_of_jax_s_cache(tmp_path, recwarn) -> None:
    settings = {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    relu = functools.partial(compile_for, torch.nn.ReLU, {"input": torch.empty(8, 128)}, topology="v6e:1x1")
    relu()  # what tracing runs on this machine is compiled now
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        # jax remembers that this first program of a process was to be cached.
        jax.jit(lambda x: x + 1)(1.0)
        entries = set(tmp_path.iterdir())
        assert entries
        for _ in range(2):
            assert relu().fits
        compiled(jnp.sin, jax.ShapeDtypeStruct((8, 128), jnp.float32), topology=described("v6e:1x1"))
        assert set(tmp_path.iterdir()) == entries
        # And it goes on with programs for this machine.
        jax.jit(lambda x: x + 2)(1.0)
        assert set(tmp_path.iterdir()) > entries
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    assert not [warning for warning in recwarn if "compilation cache" in str(warning.message)]


def test_a_missing_plan_is_warned_of_once(caplog) -> None:
    lowered = lower_for(torch.nn.ReLU, {"input": torch.empty(8, 128)}, topology="v6e:2x2", tp=4)
    lowered.lower_with({})
    assert caplog.text.count("ReLU has no tensor-parallel plan") == 1


def test_a_mesh_of_ones_own() -> None:
    mesh = tpuport.create_mesh(dp=2, tp=2, devices=described("v6e").devices)
    made = lower_for(Attending, {"x": torch.empty(1, 8, 256)}, topology="v6e", mesh=mesh, rules=RULES)
    assert made.mesh is mesh
    with pytest.raises(PortError, match="do not belong to the described TPU"):
        lower_for(Attending, {"x": torch.empty(1, 8, 256)}, topology="v5e", mesh=mesh, rules=RULES)


def test_a_mesh_of_other_devices_is_refused() -> None:
    with pytest.raises(PortError, match="do not belong to the described TPU"):
        compile_for(Attending, {"x": torch.empty(1, 8, 256)}, topology="v6e", mesh=tpuport.create_mesh(tp=-1))


def test_patches_are_applied_as_where_a_model_is_ported() -> None:
    """The page of HunyuanVideo-1.5 compiles it where nothing has enabled tpuport."""
    tpuport.disable()
    assert "hunyuan-video-1.5.forward" not in registry.applied()
    try:
        lower_for(Attending, {"x": torch.empty(1, 8, 256)}, topology="v6e", tp=4, rules=RULES)
        assert "hunyuan-video-1.5.forward" in registry.applied()
    finally:
        tpuport.disable()


@pytest.fixture
def config():
    with torch.device("meta"):
        return HunyuanVideo15Transformer3DModel(num_layers=1).config


def test_arithmetic_of_linear_layers_is_two_flops_for_each_weight_and_token(config) -> None:
    parts = hunyuan_compile.arithmetic(config, frames=1, height=30, width=40)
    inner = 2048
    assert parts["video stream"] == 2 * 12 * inner**2 * 1200
    assert parts["text stream"] == 2 * 12 * inner**2 * 1256
    assert parts["attention"] == 4 * 2456**2 * inner
    assert parts["modulation"] == 2 * (2 * 6 + 2) * inner**2


def test_torch_counts_the_same_for_a_small_model() -> None:
    """torch's own counter, on the video and text streams of one block."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = HunyuanVideo15Transformer3DModel(num_layers=1).eval()
        block = model.transformer_blocks[0]
        video, text = torch.empty(1, 1200, 2048), torch.empty(1, 1256, 2048)
        mask = torch.empty(1, 1256, dtype=torch.bool)
        rotary = torch.empty(1200, 128), torch.empty(1200, 128)
        with FlopCounterMode(display=False) as counter:
            block(video, text, torch.empty(1, 2048), mask, rotary)
    parts = hunyuan_compile.arithmetic(model.config, frames=1, height=30, width=40)
    ours = sum(parts[name] for name in ("attention", "video stream", "text stream", "modulation"))
    assert counter.get_total_flops() == ours - 2 * 2 * 2048**2, "but for the modulation of the last norm"


@pytest.fixture(scope="module")
def committed():
    """The reports in docs, of all 54 blocks."""
    return [one for one in json.loads(hunyuan_compile.OUT.read_text()) if one["blocks"] == 54]


def test_the_committed_reports_are_of_the_whole_model_and_hold_what_is_said_of_them(committed) -> None:
    assert len(committed) == 3
    for one in committed:
        assert one["parameters"] > 8.3e9
        assert one["topology"] == "v6e:2x4"
        assert one["memory"]["fits"] is True
        assert one["flops_to_arithmetic"] == pytest.approx(1, abs=0.03)
        assert one["square_arrays"]["found"] == []
        assert one["resident_bytes"] < 8e9
        long = [call for call in one["attention"] if call["query"][2] > 111_600]
        assert [(call["implementation"], call["padding"], call["calls"]) for call in long] == [
            ("flash", "exact", 54)
        ]


@pytest.mark.slow
def test_one_block_at_121_frames_of_720p(config) -> None:
    """The real sizes with one block of 54: half a minute of a compiler in a hurry."""
    tpuport.enable()
    try:
        made = hunyuan_compile.report(blocks=1, dp=1, sp=4, tp=2, effort=-1.0)
    finally:
        tpuport.disable()
    assert made["memory"]["fits"]
    assert made["flops_to_arithmetic"] == pytest.approx(1, abs=0.03)
    assert made["square_arrays"]["found"] == []
    assert made["resident_bytes"] < 8e9
    assert {call["implementation"] for call in made["attention"]} == {"flash"}
