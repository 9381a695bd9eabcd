"""Rules about where weights and activations are: each on a program that has it, and on one that has not."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.sharding import PartitionSpec

from tpuport.sharding import ShardingRules
from tpuport.topology.advice import advise
from tpuport.topology.advice.remedy_texts import write_rules
from tpuport.topology.compile_report import Failure

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")


@pytest.mark.slow  # so are the Llamas of `decoded` in ../test_compiling.py, which get none
def test_a_model_that_is_sharded_as_megatron_does_it_gets_no_advice(advice, models) -> None:
    findings = advice(models.Blocks, {"tokens": models.tokens(2, 256)}, rules=models.rules(models.BLOCKS))
    assert findings == ()


@pytest.fixture(scope="module")
def wide(advice, models):
    changed = models.rules(models.BLOCKS, embed=PartitionSpec(None, "tp"))
    return advice(models.Blocks, {"tokens": models.tokens(2, 256)}, rules=changed)


def test_a_sharded_width_costs_collectives_at_each_norm(wide) -> None:
    [one] = wide
    assert (one.rule, one.name) == ("TPC001", "width-sharded-activations")
    # Two norms; what is gathered for products: what they make, and the last position for the head.
    assert "2 all-reduces of norms' sums and 3 all-gathers of activations, of 9" in one.message
    assert "embed.weight is over tp" in one.message
    assert r"r'embed\.weight': PartitionSpec('tp', None)" in one.remedy
    # Sums of 2 x 256 tokens in float32, and the gathered activations in bfloat16.
    assert (one.cost, one.unit) == (2 * 2 * 256 * 4 + (2 * 2 * 256 + 2) * 512 * 2, "bytes sent")
    assert one.source is not None
    assert one.source.file == __file__.replace("test_sharding_advice", "conftest")


@pytest.mark.slow  # the finding for a vocabulary below
def test_a_weight_that_is_left_whole_is_named_for_all_layers(advice, models, monkeypatch) -> None:
    # However slow this machine is.
    monkeypatch.setattr("tpuport.topology.advice.rules_trial._MOST_SECONDS", float("inf"))
    changed = models.rules(models.BLOCKS, up=PartitionSpec(), down=PartitionSpec())
    findings = advice(models.Blocks, {"tokens": models.tokens(2, 256)}, rules=changed)
    [finding] = findings
    assert finding.rule == "TPC002"
    assert "4 weights, 8 MiB together, are whole on each of the 4 devices of tp" in finding.message
    assert (
        "layers.0.up.weight (2048, 512) and 1 like it, 4 MiB; layers.0.down.weight (512, 2048)"
        in finding.message
    )
    assert r"r'layers\.\d+\.up\.weight': PartitionSpec('tp', None)" in finding.remedy
    assert re.search(
        r"compiled with these rules, a step has \d+ collectives \(.*\) and .* a device instead of \d+ ",
        finding.remedy,
    )
    assert finding.cost == 2 * 2 * 512 * 2048 * 2 * 3 / 4
    # What a file for --rules is to hold, as the command reads it.
    [file] = re.findall(r"for --rules FILE, (\{.*?\}) beside", finding.remedy)
    placed = ShardingRules({name: PartitionSpec(*spec) for name, spec in json.loads(file).items()})
    assert placed.spec("layers.1.up.weight", (2048, 512)) == PartitionSpec("tp", None)
    assert placed.spec("layers.1.down.weight", (512, 2048)) == PartitionSpec(None, "tp")


# Weights that are worth dividing are those of the next test.
@pytest.mark.parametrize(
    ("width", "expected"), [(512, []), pytest.param(1536, ["TPC002"], marks=pytest.mark.slow)]
)
def test_few_weights_that_a_plan_leaves_whole_are_all_right(programs, width, expected) -> None:
    """Embedders of a large model: below 3% of what a device holds they do not matter, together."""
    mesh = programs(tp=4)
    weights = {f"layers.{n}.up.weight": mesh.array((8192, 8192), "tp", None) for n in range(2)}
    weights |= {f"embed_{name}.weight": mesh.array((1024, width // 2)) for name in "ab"}
    share = 2 * 1024 * width // 2 / (2 * 8192 * 8192 / 4 + 2 * 1024 * width // 2)
    assert (share > 0.03) == bool(expected)

    def f(weights, x):
        # A product with as large a weight would take the compiler ten seconds.
        return x + sum(weight.sum() for name, weight in weights.items() if "up" in name)

    assert mesh.found(f, weights, mesh.array((8, 128))) == expected


def test_nothing_sharded_is_one_finding(programs) -> None:
    mesh = programs(tp=4)
    weights = {f"{name}.weight": mesh.array((1024, 1024)) for name in ("a", "b", "c")}

    def f(weights, x):
        return x @ weights["a.weight"] @ weights["b.weight"] @ weights["c.weight"]

    [finding] = advise(mesh.evidence(f, weights, mesh.array((8, 1024))))
    assert finding.rule == "TPC002"
    assert "no weight is sharded over tp=4: each device holds all 6 MiB" in finding.message
    assert finding.cost == 3 * 1024 * 1024 * 2 * 3 / 4
    assert r"ShardingRules({r'a\.weight': PartitionSpec('tp', None)" in finding.remedy
    assert r'for --rules FILE, {"a\\.weight": ["tp", null]' in finding.remedy
    assert "inputs sharded over dp" in finding.remedy


@pytest.mark.slow  # the finding above, for weights that fit
def test_rows_are_no_remedy_for_weights_that_do_not_fit(programs) -> None:
    mesh = programs(tp=4)
    weights = {"up.weight": mesh.array((4096, 1024)), "down.weight": mesh.array((1024, 4096))}
    evidence = mesh.evidence(lambda weights, x: x @ weights["up.weight"].T, weights, mesh.array((8, 1024)))
    failure = Failure("memory", "too large")
    findings = advise(
        dataclasses.replace(evidence, report=dataclasses.replace(evidence.report, failure=failure))
    )
    assert [one.rule for one in findings] == ["TPC002"]
    assert "dp" not in findings[0].remedy
    assert r"r'up\.weight': PartitionSpec('tp', None)" in findings[0].remedy
    assert r"r'down\.weight': PartitionSpec(None, 'tp')" in findings[0].remedy


def test_a_finding_has_all_rules_and_its_text_counts_those_that_it_leaves_out(programs) -> None:
    mesh = programs(tp=4)
    names = ("up", "mix", "down")
    weights = {f"{name}.weight": mesh.array((1024, 1024)) for name in names}

    def run(weights, x):
        for name in names:
            x = x @ weights[f"{name}.weight"].T
        return x

    [finding] = advise(mesh.evidence(run, weights, mesh.array((8, 1024))))
    assert finding.rule == "TPC002"
    assert "PartitionSpec('tp', None)}) and 1 more (all 3: --format json, or html)" in finding.remedy
    assert "..." not in finding.remedy
    assert finding.rules == dict.fromkeys((r"down\.weight", r"mix\.weight", r"up\.weight"), ("tp", None))


@pytest.mark.slow  # the fused projections of test_fused_advice.py
def test_a_fused_projection_is_not_cut_by_an_advice_that_another_would_undo(programs) -> None:
    mesh = programs(tp=4)
    weights = {"gate_up.weight": mesh.array((4096, 1024)), "down.weight": mesh.array((1024, 2048))}

    def gated(weights, x):
        gate, up = jnp.split(x @ weights["gate_up.weight"].T, 2, -1)
        return (gate * up) @ weights["down.weight"].T

    [finding] = [
        one for one in advise(mesh.evidence(gated, weights, mesh.array((8, 1024)))) if one.rule == "TPC002"
    ]
    assert finding.rules == {r"down\.weight": (None, "tp")}
    assert "gate_up" not in finding.remedy


def test_blocks_in_a_loop_are_named_as_rules_name_them(programs) -> None:
    mesh = programs(tp=4)
    weights = {"layers.*.up.weight": mesh.array((3, 512, 2048))}
    remedy = write_rules(weights, weights, "tp", 4).text
    assert r"r'layers\.\d+\.up\.weight': PartitionSpec(None, 'tp')" in remedy


def test_heads_that_do_not_divide_keep_their_weights_whole(advice, models) -> None:
    changed = models.rules(models.ATTENDING, k=PartitionSpec(), v=PartitionSpec())
    findings = advice(lambda: models.Attending(8, 128, kv=2), {"x": models.meta(1, 512, 1024)}, rules=changed)
    assert [one.rule for one in findings] == ["TPC007"]
    assert "2 key/value heads cannot be divided over tp=4" in findings[0].message
    assert "2 weights of attention, 1 MiB" in findings[0].message
    assert "that it would hold 1/4 of" in findings[0].message
    assert "create_mesh(dp=2, tp=2) (--dp 2 --tp 2)" in findings[0].remedy
    assert findings[0].cost == 2 * 256 * 1024 * 2 * 3 / 4


@pytest.mark.slow
def test_heads_that_divide_are_all_right(advice, models) -> None:
    findings = advice(
        lambda: models.Attending(8, 128, kv=4),
        {"x": models.meta(1, 512, 1024)},
        rules=models.rules(models.ATTENDING),
    )
    assert findings == ()


@pytest.mark.slow  # the few weights that a plan leaves whole above
def test_a_vocabulary_that_every_device_holds(advice, models) -> None:
    changed = models.rules(models.BLOCKS, head=PartitionSpec())
    [finding] = advice(lambda: models.Blocks(1), {"tokens": models.tokens(2, 16)}, rules=changed)
    assert finding.rule == "TPC011"
    assert finding.message.startswith(
        "head.weight (8192, 512), 8 MiB, is whole on each of the 4 devices of tp"
    )
    assert finding.cost == 8192 * 512 * 2 * 3 / 4


@pytest.mark.slow
def test_a_table_of_labels_is_not_worth_padding(advice, models) -> None:
    changed = models.rules(models.BLOCKS, embed=PartitionSpec(), head=PartitionSpec())
    assert advice(lambda: models.Blocks(rows=8191), {"tokens": models.tokens(2, 256)}, rules=changed) == ()


@pytest.mark.slow
def test_a_division_that_costs_more_than_it_saves_is_no_advice(advice, models) -> None:
    class Mixing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch.nn.Linear(1024, 4096, bias=False)
            self.mix = torch.nn.Linear(1024, 1024, bias=False)
            self.down = torch.nn.Linear(4096, 1024, bias=False)

        def forward(self, x):
            # A norm over what the mixing's outputs are divided over, again and again.
            for _ in range(10):
                x = torch.nn.functional.rms_norm(self.mix(x), (1024,))
            return self.down(torch.nn.functional.silu(self.up(x)))

    rules = ShardingRules(
        {r"up\.weight": PartitionSpec("tp", None), r"down\.weight": PartitionSpec(None, "tp")}
    )
    findings = advice(Mixing, {"x": models.meta(8, 512, 1024)}, rules=rules)
    assert "TPC002" not in [one.rule for one in findings]


@pytest.mark.slow
def test_a_vocabulary_that_does_not_divide_says_how_to_pad_it(advice, models) -> None:
    changed = models.rules(models.BLOCKS, embed=PartitionSpec(), head=PartitionSpec())

    class Padded(models.Blocks):
        def resize_token_embeddings(self, **options):
            raise NotImplementedError

    findings = advice(lambda: Padded(rows=8191), {"tokens": models.tokens(2, 256)}, rules=changed)
    assert [one.rule for one in findings] == ["TPC011", "TPC011"]
    assert "tp=4 does not divide 8191 rows" in findings[0].message
    assert "pad_to_multiple_of=128" in findings[0].remedy


def gathering(weights, x):
    for name in sorted(weights):
        x = jax.nn.relu(x @ weights[name])
    return x


@pytest.mark.slow  # the sharded width above
def test_weights_that_are_gathered_in_each_step(programs) -> None:
    mesh = programs(dp=4)
    weights = {f"{name}.weight": mesh.array((1024, 1024), "dp", None) for name in "ab"}
    findings = advise(mesh.evidence(gathering, weights, mesh.array((4096, 1024), "dp", None)))
    assert [one.rule for one in findings] == ["TPC013", "TPC013"]
    assert (
        "1 all-gather a step of weights (2 MiB on each device): a.weight is sharded over dp"
        in findings[0].message
    )
    assert (findings[0].cost, findings[0].unit) == (1024 * 1024 * 2, "bytes sent")


@pytest.mark.slow
def test_weights_that_are_gathered_in_a_loop_count_as_often_as_it_runs(programs) -> None:
    mesh = programs(dp=4)
    weights = {"layers.weight": mesh.array((6, 1024, 1024), None, "dp", None)}

    def f(weights, x):
        return jax.lax.scan(lambda x, w: (jax.nn.relu(x @ w), None), x, weights["layers.weight"])[0]

    findings = advise(mesh.evidence(f, weights, mesh.array((4096, 1024), "dp", None)))
    [gathered] = [one for one in findings if one.rule == "TPC013"]
    assert gathered.cost == 6 * 1024 * 1024 * 2


@pytest.mark.slow  # the one finding for a batch that is not shared out, below
def test_replicated_weights_of_a_shared_batch_are_not_gathered(programs) -> None:
    mesh = programs(dp=4)
    weights = {f"{name}.weight": mesh.array((1024, 1024)) for name in "ab"}
    assert mesh.found(gathering, weights, mesh.array((4096, 1024), "dp", None)) == []


def test_a_batch_that_is_not_shared_out(programs) -> None:
    mesh = programs(dp=4)
    weights = {f"{name}.weight": mesh.array((1024, 1024)) for name in "ab"}
    inputs = {"x": jax.ShapeDtypeStruct((1026, 1024), jnp.bfloat16)}
    [finding] = advise(mesh.evidence(gathering, weights, mesh.array((1026, 1024)), inputs=inputs))
    assert finding.rule == "TPC014"
    assert "1026 rows do not divide over dp=4" in finding.message
    # Three quarters of what a device does.
    assert finding.cost == pytest.approx(2 * 2 * 1026 * 1024**2 * 3 / 4, rel=0.05)
    assert finding.unit == "flops"
    assert "a batch of a multiple of 4 rows; pass the inputs sharded over dp" in finding.remedy
    assert "--rules FILE" in finding.remedy


@pytest.mark.slow  # the findings for each of the two below and above
def test_what_dp_repeats_is_told_apart_from_what_tp_repeats(programs) -> None:
    mesh = programs(dp=2, tp=2)
    weights = {f"{name}.weight": mesh.array((1024, 1024)) for name in "ab"}

    x = mesh.array((4096, 1024))
    whole = {one.rule: one for one in advise(mesh.evidence(gathering, weights, x, inputs={"x": x}))}
    assert set(whole) == {"TPC002", "TPC014"}
    assert "2.00 times" in whole["TPC014"].message
    assert whole["TPC014"].cost == pytest.approx(2 * 2 * 4096 * 1024**2 / 2, rel=0.05)


@pytest.mark.slow
def test_rows_over_dp_are_repeated_by_tp_alone(programs) -> None:
    """The remedy of the test before does what it says."""
    mesh = programs(dp=2, tp=2)
    weights = {f"{name}.weight": mesh.array((1024, 1024)) for name in "ab"}
    x = mesh.array((4096, 1024), "dp", None)
    assert mesh.found(gathering, weights, x, inputs={"x": x}) == ["TPC002"]


@pytest.mark.slow  # the next test, of the same rule
def test_work_that_each_device_does_for_itself(programs) -> None:
    """A product of activations that nothing divides, in a model whose only weight is divided."""
    mesh = programs(tp=4)

    def f(weights, x):
        y = jax.lax.with_sharding_constraint(x @ x.T, jax.NamedSharding(mesh.mesh, PartitionSpec()))
        return (y @ x).sum(0) @ weights["up.weight"]

    weights, x = {"up.weight": mesh.array((1024, 8192), None, "tp")}, mesh.array((1024, 1024))
    [finding] = advise(mesh.evidence(f, weights, x))
    assert finding.rule == "TPC015"
    assert "times its share" in finding.message
    assert finding.cost == pytest.approx(2 * 2 * 1024**3 * 3 / 4, rel=0.05)


def test_weights_that_are_whole_are_named_where_their_products_are_the_work(programs) -> None:
    """A quarter of a megabyte for 16 thousand rows: nothing to hold, and most of the work."""
    mesh = programs(tp=4)
    weights = {"up.weight": mesh.array((256, 8192), None, "tp"), "small.weight": mesh.array((256, 256))}

    def f(weights, x):
        return jax.nn.relu(x @ weights["small.weight"]).sum(0) @ weights["up.weight"]

    [finding] = advise(mesh.evidence(f, weights, mesh.array((1 << 14, 256))))
    assert finding.rule == "TPC015"
    # Three of four devices do what one would.
    assert (
        "1.61 GFLOP of that are products with 1 weight that is whole on each of the 4 devices"
        in finding.message
    )
    assert finding.cost == pytest.approx(2 * (1 << 14) * 256 * 256 * 3 / 4, rel=0.05)
    assert r"rules.override({r'small\.weight': PartitionSpec('tp', None)})" in finding.remedy


def test_an_axis_that_divides_nothing(programs) -> None:
    weights = {"a.weight": ((1024, 1024), None, "tp"), "b.weight": ((1024, 1024), "tp", None)}
    mesh = programs(sp=2, tp=2)
    placed = {name: mesh.array(*one) for name, one in weights.items()}
    [one] = advise(mesh.evidence(gathering, placed, mesh.array((1024, 1024))))
    assert one.rule == "TPC017"
    assert "sp=2 divides no weight" in one.message


def test_a_module_that_has_no_weights_gets_no_advice(programs) -> None:
    mesh = programs(tp=4)
    assert mesh.found(lambda weights, x: x + 1, {}, mesh.array((8, 8)), model=torch.nn.Identity()) == []
