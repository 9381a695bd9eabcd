"""Rules that `tpuport compile` infers for a model without a plan, and how they go into a file."""

from typing import Any

import jax
import pytest
import torch
import transformers

import tpuport
from benchmarks import own_models
from tpuport.sharding import ShardingRules
from tpuport.topology.abstract_weights import abstract_weights, build_model
from tpuport.topology.compile_messages import CompileRequest, Event, RulesInForce, WarningEvents
from tpuport.topology.generation_tasks import Prefill
from tpuport.topology.inferred_rules import infer_missing_rules, rules_as_placed
from tpuport.topology.lowering import Lowered
from tpuport.topology.target_compiler import CompiledProgram, TargetCompiler
from tpuport.topology.targets import Target


def mesh_of(tp: int) -> Any:
    return tpuport.create_mesh(tp=tp, devices=jax.devices()[:tp])


def language_model(name: str, **options: Any) -> Any:
    config: Any = transformers.AutoConfig.for_model(name, vocab_size=64, num_hidden_layers=2, **options)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config).eval()


def test_a_model_with_a_plan_keeps_it() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
    model = language_model("llama", **sizes)
    assert infer_missing_rules(model, {"input_ids": torch.zeros(1, 8, dtype=torch.long)}) is None


def test_a_language_model_without_a_plan_gets_rules_from_a_prompt() -> None:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    }
    model = language_model("biogpt", **sizes)
    rules = infer_missing_rules(model, Prefill(batch=1, length=8))
    assert rules is not None
    assert tuple(rules.spec("biogpt.layers.1.fc1.weight", (64, 32))) == ("tp", None)
    assert tuple(rules.spec("biogpt.layers.1.fc2.weight", (32, 64))) == (None, "tp")


@pytest.mark.parametrize("model", [torch.nn.Identity(), torch.nn.LayerNorm(8)])
def test_where_nothing_can_be_divided_there_are_no_rules(model: torch.nn.Module) -> None:
    assert infer_missing_rules(model, {"input": torch.ones(2, 8)}) is None


def test_code_that_cannot_be_traced_has_no_rules_and_compiling_tells_why() -> None:
    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) if x.sum() > 0 else x

    assert infer_missing_rules(Branches(), {"x": torch.ones(2, 8)}) is None


def test_rules_of_a_file_say_what_the_mesh_divides() -> None:
    """Four heads over eight devices are whole, which a file has to say since it knows no heads."""
    model, inputs = own_models.gpt(1)
    rules = ShardingRules.infer(model, inputs)
    divided = abstract_weights(model, mesh_of(8), rules, None, ())
    assert rules_as_placed(rules, divided)[r"blocks\.0\.attn\.qkv\.weight"] == ["tp", None]
    model = own_models.GPT(1, heads=4)
    rules = ShardingRules.infer(model, inputs)
    whole = abstract_weights(model, mesh_of(8), rules, None, ())
    placed = rules_as_placed(rules, whole)
    assert placed[r"blocks\.0\.attn\.qkv\.weight"] == [None, None]
    assert placed[r"blocks\.0\.c_fc\.weight"] == ["tp", None]
    again = ShardingRules({pattern: jax.sharding.PartitionSpec(*spec) for pattern, spec in placed.items()})
    assert abstract_weights(model, mesh_of(8), again, None, ()) == whole


class FakeLowered(Lowered):
    """Takes the place of a lowered program."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the compiler of targets emits and asks for, with made-up programs."""
    asked: list[Any] = []

    def lower(model: Any, inputs: Any, **options: Any) -> Any:
        asked.append(options["rules"])
        mesh = mesh_of(options["tp"])
        built = build_model(model)
        weights = abstract_weights(built, mesh, options["rules"], None, ())
        return FakeLowered(mesh=mesh, model=built, weights=weights)

    monkeypatch.setattr("tpuport.topology.target_compiler.lower_for", lower)
    monkeypatch.setattr(TargetCompiler, "_compile_lowered", lambda *args: CompiledProgram({}, {}))

    def run(kind: str, tp: int, **request: Any) -> tuple[list[Any], list[Event], list[str]]:
        model, inputs = own_models.gpt(1)
        target = Target("mine", lambda: model, inputs, kind=kind)
        events: list[Event] = []
        asking = CompileRequest("mine", {}, "v5e:2x4", {"dp": 1, "sp": 1, "tp": tp}, **request)
        result = TargetCompiler(asking, events.append, WarningEvents(events.append)).compile(target)
        return asked, [event for event in events if isinstance(event, RulesInForce)], result.notes

    return run


def test_own_code_is_compiled_with_inferred_rules_which_are_reported(compiled: Any) -> None:
    [rules], [event], [note] = compiled("code", 4)
    assert tuple(rules[r"blocks\.0\.c_fc\.weight"]) == ("tp", None)
    assert event.rules[r"blocks\.0\.c_fc\.weight"] == ["tp", None]
    assert "sums up" in event.reasons[r"blocks\.0\.c_proj\.weight"]
    assert "ShardingRules.infer" in note


@pytest.mark.parametrize(
    ("kind", "tp", "request_options"),
    [("code", 1, {}), ("encoder", 4, {}), ("code", 4, {"rules": {".*c_fc.weight": ["tp", None]}})],
)
def test_nothing_is_inferred(compiled: Any, kind: str, tp: int, request_options: dict[str, Any]) -> None:
    [rules], events, notes = compiled(kind, tp, **request_options)
    assert (events, notes) == ([], [])
    assert rules is None or list(rules) == [".*c_fc.weight"]
