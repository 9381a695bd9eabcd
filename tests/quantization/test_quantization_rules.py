"""Which weights are quantised."""

import pytest
import torch
from torch import nn

from tpuport import PortError
from tpuport.quantization import QuantizationRules, as_quantization_rules


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"proj": nn.Linear(4, 4), "norm": nn.LayerNorm(4), "gate": nn.Linear(4, 2)})
            for _ in range(2)
        )
        self.lm_head = nn.Linear(4, 10)


def names(rules, model=None):
    schemes = as_quantization_rules(rules).schemes(model or Model())
    return {name: scheme.name for name, scheme in schemes.items()}


def test_a_scheme_is_for_linear_layers_but_not_for_heads_and_routers():
    assert names("int8") == {"layers.0.proj.weight": "int8", "layers.1.proj.weight": "int8"}


def test_language_models_keep_their_head_and_embedding():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    chosen = names("int4", model)
    assert len(chosen) == 7
    assert not any("lm_head" in name or "embed" in name or "norm" in name for name in chosen)


def test_tied_weights_stay():
    model = Model()
    model.layers[1]["proj"].weight = model.layers[0]["proj"].weight
    model.layers.append(nn.ModuleDict({"proj": nn.Linear(4, 4)}))
    assert names("int8", model) == {"layers.2.proj.weight": "int8"}


def test_the_first_rule_that_matches_decides():
    rules = {r"layers\.0\..*": None, r".*\.proj\.weight": "int4:2", r"lm_head\.weight": "fp8"}
    assert names(rules) == {"layers.1.proj.weight": "int4:2", "lm_head.weight": "fp8"}


def test_rules_are_a_mapping():
    rules = QuantizationRules({".*": "int8", "a": None})
    assert list(rules) == [".*", "a"]
    assert rules["a"] is None
    assert repr(rules) == "QuantizationRules({'.*': 'int8', 'a': None})"


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"no_such.*": "int8"}, "no weight can follow the quantisation rule no_such"),
        ({r"embed\.weight": "int8"}, "no weight can follow"),
        ({".*": "int8", r"lm_head\.weight": "int4"}, "lm_head"),
        ({"(": "int8"}, "not a regular expression"),
        ({3: "int8"}, "not a regular expression"),
        ({".*": "int7"}, "not a quantisation scheme"),
    ],
)
def test_rules_that_do_nothing_are_errors(rules, message):
    with pytest.raises(PortError, match=message):
        names(rules)


def test_a_list_is_no_mapping():
    with pytest.raises(PortError, match="not a mapping"):
        QuantizationRules([("a", "int8")])
