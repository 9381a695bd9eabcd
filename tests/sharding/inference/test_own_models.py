"""Models in the manner of research code, which have no plan: what is divided, what it costs, and that it is right."""

import jax
import numpy as np
import pytest
import torch

import tpuport
from benchmarks import own_models
from benchmarks.inferred_plans import measure
from tpuport.sharding import ShardingRules, audit, infer_plan
from tpuport.sharding.inference.traced_program import read_program


def specs(model, inputs):
    rules = ShardingRules.infer(model, inputs)
    return {name: tuple(rules.spec(name, value.shape)) for name, value in model.named_parameters()}


@pytest.mark.parametrize(
    "name",
    # The collectives of a DiT are counted below.
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "own DiT" else [])
        for name in own_models.BUILDERS
    ],
)
def test_on_a_mesh_it_computes_what_torch_does(name):
    model, inputs = own_models.BUILDERS[name](2)
    with torch.no_grad():
        expected = model(**inputs).numpy()
    rules = ShardingRules.infer(model, inputs)
    tpuport.port(model, mesh=tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4]), rules=rules)
    actual = np.asarray(tpuport.compile(model)(**inputs))
    assert np.abs(actual - expected).max() < 2e-6 * np.abs(expected).max()


@pytest.mark.slow  # the DiT below, and the fused projections of ../test_collectives.py
def test_a_block_of_a_gpt_costs_two_all_reduces_and_what_its_fused_projection_moves():
    costs = []
    for layers in (1, 2):
        model, inputs = own_models.gpt(layers)
        costs.append(measure(model, inputs, ShardingRules.infer(model, inputs), tp=2).collectives)
    block = costs[1] - costs[0]
    assert block.pop("collective-permute") <= 2
    assert block == {"all-reduce": 2}


def test_a_block_of_a_dit_costs_two_all_reduces_and_one_for_its_modulation():
    costs = []
    for layers in (1, 2):
        model, inputs = own_models.dit(layers)
        costs.append(measure(model, inputs, ShardingRules.infer(model, inputs), tp=4))
    assert costs[1].collectives - costs[0].collectives == {"all-reduce": 3}
    whole = measure(model, inputs, ShardingRules({}), tp=4)
    assert costs[1].nbytes < 0.42 * whole.nbytes


def test_pairs_of_a_gpt_are_divided_and_norms_are_not():
    actual = specs(*own_models.gpt(2))
    for block in ("blocks.0.", "blocks.1."):
        assert actual[f"{block}attn.qkv.weight"] == actual[f"{block}c_fc.weight"] == ("tp", None)
        assert actual[f"{block}attn.proj.weight"] == actual[f"{block}c_proj.weight"] == (None, "tp")
        assert actual[f"{block}c_fc.bias"] == ("tp",)
        assert actual[f"{block}c_proj.bias"] == actual[f"{block}ln_1.weight"] == (None,)
    assert actual["tokens.weight"] == ("tp", None)
    assert actual["positions.weight"] == (None, None)


def test_results_may_be_other_things_than_tensors():
    class Named(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, **inputs):
            return {"logits": self.model(**inputs), "name": "gpt", "offset": torch.ones(1)}, 3

    model, inputs = own_models.gpt(1)
    expected = {f"model.{name}": spec for name, spec in specs(model, inputs).items()}
    assert specs(Named(model), inputs) == expected


class Cache:
    def __init__(self):
        self.rows = torch.zeros(2, 8, 64)
        self.steps = 0


def test_tensors_in_objects_of_any_class_are_inputs():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

        def forward(self, x, caches):
            caches[0].rows[:, :4] = self.down(torch.relu(self.up(x)))
            caches[0].steps += 1
            return caches[0].rows.sum(1)

    cache = Cache()
    plan = specs(Model(), (torch.zeros(2, 4, 64), [cache]))
    assert (plan["up.weight"], plan["down.weight"]) == (("tp", None), (None, "tp"))
    # The caller's own is as it was.
    assert type(cache.rows) is torch.Tensor
    assert cache.steps == 0


def test_modulation_is_divided_where_the_condition_is_made():
    actual = specs(*own_models.dit(2))
    assert actual["time.2.weight"] == ("tp", None)
    assert actual["classes.weight"] == (None, "tp")
    assert actual["blocks.1.adaLN_modulation.1.weight"] == (None, "tp")


def test_a_stacked_projection_stays_whole_and_the_reason_tells_how_to_lay_it_out():
    plan = infer_plan(*own_models.dit(1))
    [weight] = [item for item in plan.weights if item.names == ("blocks.0.attn.qkv.weight",)]
    assert not any(weight.spec)
    assert "3 x 8 x 8" in weight.reason
    assert "reorder" in weight.reason


def test_heads_are_not_cut_through():
    model, inputs = own_models.gpt(1)
    rules = ShardingRules.infer(model, inputs)
    assert rules.rule("blocks.0.attn.qkv.weight").heads == 8
    assert rules.rule("blocks.0.attn.proj.weight").heads == 8
    assert rules.rule("blocks.0.c_fc.weight").heads is None


def test_rules_print_with_their_reasons_and_fit_deeper_models():
    model, inputs = own_models.gpt(2)
    rules = ShardingRules.infer(model, inputs)
    assert r"'blocks\\.\\d+\\.c_proj\\.weight'" in repr(rules)
    assert "# sums up 256 features, one all-reduce" in repr(rules)
    assert rules.spec("blocks.17.c_proj.weight", (64, 256)) == rules.spec("blocks.0.c_proj.weight", (64, 256))


def test_a_tied_weight_has_one_rule():
    model, inputs = own_models.gpt(1)
    [weight] = [item for item in infer_plan(model, inputs).weights if "head.weight" in item.names]
    assert weight.names == ("tokens.weight", "head.weight")


def test_layers_of_a_sequence_have_rules_of_their_own():
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))
    rules = ShardingRules.infer(model, torch.zeros(4, 32))
    assert tuple(rules["0\\.weight"]) == ("tp", None)
    assert tuple(rules["2\\.weight"]) == (None, "tp")


def test_a_sum_along_the_features_between_two_products_keeps_them_whole():
    class Cumulative(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

        def forward(self, x):
            return self.down(self.up(x).cumsum(-1))

    plan = infer_plan(Cumulative(), torch.zeros(4, 8, 32))
    [up] = [weight for weight in plan.weights if weight.names == ("up.weight",)]
    assert not any(up.spec)
    assert "cumsum (test_own_models.py:" in up.reason


def test_what_the_call_does_not_use_stays_whole():
    class TwoBranches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down, self.other = (
                torch.nn.Linear(32, 64),
                torch.nn.Linear(64, 32),
                torch.nn.Linear(32, 64),
            )

        def forward(self, x):
            return x + self.down(self.up(x).relu())

    plan = infer_plan(TwoBranches(), torch.zeros(4, 8, 32))
    [other] = [weight for weight in plan.weights if weight.names == ("other.weight",)]
    assert not any(other.spec)
    assert other.reason == "whole: this call does not use it"


def test_a_transform_along_the_features_keeps_them_whole_and_one_along_the_sequence_does_not():
    class Mixing(torch.nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.dim = dim
            self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

        def forward(self, x):
            return x + self.down(torch.fft.fft(self.up(x), dim=self.dim).real)

    assert specs(Mixing(-1), torch.zeros(4, 8, 32))["up.weight"] == (None, None)
    assert specs(Mixing(-2), torch.zeros(4, 8, 32))["up.weight"] == ("tp", None)


@pytest.mark.parametrize("operation", ["reduce", "reduce_window"])
def test_what_combines_two_elements_is_not_read_as_a_call_on_arrays(operation):
    """These equations have a jaxpr of that function, with as many arguments as they have operands."""

    def combine(x, y):
        return 2 * x + y

    def call(x):
        if operation == "reduce":
            return jax.lax.reduce(x, 0.0, combine, (1,))
        return jax.lax.reduce_window(x, 0.0, combine, (1, 2), (1, 2), "VALID")[:, 0]

    program = read_program(jax.make_jaxpr(call)(jax.ShapeDtypeStruct((4, 8), "float32")), ["x"], 0)
    assert [value.shape for value in program.outputs] == [(4,)]
    assert operation in [user.name for user in program.users_of(program.weights.values())]


class ByHand(torch.nn.Module):
    """Attention in products, with fewer key/value heads than query heads."""

    def __init__(self, kv_heads=2):
        super().__init__()
        self.kv_heads = kv_heads
        self.q, self.o = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        self.k, self.v = torch.nn.Linear(32, 8 * kv_heads), torch.nn.Linear(32, 8 * kv_heads)

    def forward(self, x):
        batch, length, _ = x.shape
        query = self.q(x).view(batch, length, 4, 8).transpose(1, 2)
        key, value = (
            layer(x)
            .view(batch, length, self.kv_heads, 8)
            .transpose(1, 2)
            .repeat_interleave(4 // self.kv_heads, 1)
            for layer in (self.k, self.v)
        )
        scores = (query @ key.transpose(-1, -2) / 8**0.5).softmax(-1)
        return x + self.o((scores @ value).transpose(1, 2).reshape(batch, length, 32))


def test_heads_that_share_keys_may_be_divided_further_than_keys():
    rules = ShardingRules.infer(ByHand(), torch.zeros(1, 16, 32))
    assert [rules.rule(f"{name}.weight").heads for name in "qkvo"] == [4, 2, 2, 4]


def test_a_single_key_head_stays_whole():
    plan = infer_plan(ByHand(kv_heads=1), torch.zeros(1, 16, 32))
    weights = {weight.names[0]: weight for weight in plan.weights}
    assert tuple(weights["q.weight"].spec) == ("tp", None)
    assert weights["q.weight"].heads == weights["o.weight"].heads == 4
    assert not any(weights["k.weight"].spec)
    assert "one head of 8, which all devices share" in weights["k.weight"].reason


class NeverSplit(ByHand):
    """Heads joined with the batch, and taken from it in another way than by a view."""

    def forward(self, x):
        batch, length, _ = x.shape
        query, key, value = (
            layer(x).view(batch, length, 4, 8).transpose(1, 2).reshape(batch * 4, length, 8)
            for layer in (self.q, self.k, self.v)
        )
        out = torch.bmm(torch.bmm(query, key.transpose(1, 2)).softmax(-1), value)
        return x + self.o(torch.stack(out.split(4)).transpose(1, 2).reshape(batch, length, 32))


def test_heads_that_stay_joined_with_the_batch_are_whole_and_the_reason_tells_what_to_write():
    plan = infer_plan(NeverSplit(kv_heads=4), torch.zeros(2, 16, 32))
    [query] = [weight for weight in plan.weights if weight.names == ("q.weight",)]
    assert not any(query.spec)
    assert "which no view splits again: scaled_dot_product_attention" in query.reason


def test_a_vocabulary_that_no_power_of_two_divides_stays_whole():
    _, inputs = own_models.gpt(1)
    model = own_models.GPT(1, vocabulary=257)
    rules = ShardingRules.infer(model, inputs)
    [pattern] = [rule.pattern for rule in rules.rules if rule.matches("tokens.weight")]
    assert not any(rules[pattern])
    assert rules.rule("tokens.weight").reason == (
        "whole: 257 rows do not divide evenly over any power of two of devices"
    )
    # As plain rules, in which nothing is optional.
    mesh = tpuport.create_mesh(tp=8, devices=jax.devices()[:8])
    parameters = dict(model.named_parameters(remove_duplicate=False))
    assert not audit(ShardingRules(dict(rules)), parameters, mesh).errors


def test_what_a_mesh_does_not_divide_stays_whole():
    model, inputs = (
        own_models.GPT(1, heads=4, vocabulary=252),
        {"tokens": torch.zeros(2, 16, dtype=torch.long)},
    )
    mesh = tpuport.create_mesh(tp=8, devices=jax.devices()[:8])
    rules = ShardingRules.infer(model, inputs, mesh)
    assert rules.rule("tokens.weight").reason == "whole: 252 rows do not divide evenly over tp=8"
    assert rules.rule("blocks.0.attn.qkv.weight").reason == "whole: 4 heads do not divide evenly over tp=8"
    assert tuple(rules.spec("blocks.0.c_fc.weight", (256, 64))) == ("tp", None)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    assert not audit(ShardingRules(dict(rules)), parameters, mesh).errors


def test_a_mesh_needs_an_axis_for_the_plan():
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    with pytest.raises(tpuport.PortError, match="no axis tp"):
        infer_plan(torch.nn.Linear(2, 2), torch.zeros(1, 2), mesh)


def test_experts_of_three_dimensions_are_divided_whole_and_their_router_is_not():
    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = torch.nn.Linear(32, 4, bias=False)
            self.up, self.down = (
                torch.nn.Parameter(torch.randn(4, 32, 64)),
                torch.nn.Parameter(torch.randn(4, 64, 32)),
            )

        def forward(self, x):
            weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
            mask = torch.zeros(*x.shape[:-1], 4, device=x.device).scatter(-1, chosen, weights)
            hidden = torch.einsum("bte,xef->btxf", x, self.up).relu()
            return x + (torch.einsum("btxf,xfe->btxe", hidden, self.down) * mask[..., None]).sum(2)

    actual = specs(Experts(), torch.zeros(2, 16, 32))
    assert actual["up"] == actual["down"] == ("tp", None, None)
    assert actual["gate.weight"] == (None, None)


def test_what_is_not_a_model_is_refused():
    with pytest.raises(tpuport.PortError, match="a plan is inferred for a torch module"):
        infer_plan(len, torch.zeros(1))
    with pytest.raises(tpuport.PortError, match="inputs is a str"):
        infer_plan(torch.nn.Linear(2, 2), "x")


class SparseAttention(torch.nn.Module):
    """Attention to the keys that a small indexer chooses, with one choice for all heads."""

    def __init__(self, indexer_width):
        super().__init__()
        self.query, self.key, self.value, self.out = (torch.nn.Linear(64, 64, bias=False) for _ in range(4))
        self.indexer_query, self.indexer_key = (
            torch.nn.Linear(64, indexer_width, bias=False) for _ in range(2)
        )

    def forward(self, x):
        scores = self.indexer_query(x) @ self.indexer_key(x).transpose(1, 2)
        chosen = scores.topk(4, dim=-1).indices
        mask = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, chosen, True)
        heads = [
            part(x).unflatten(-1, (4, 16)).transpose(1, 2) for part in (self.query, self.key, self.value)
        ]
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask.unsqueeze(1))
        return x + self.out(mixed.transpose(1, 2).flatten(2))


def test_heads_that_share_a_computed_mask_are_divided():
    actual = specs(SparseAttention(8), {"x": torch.zeros(2, 16, 64)})
    assert actual["query.weight"] == actual["key.weight"] == actual["value.weight"] == ("tp", None)
    assert actual["out.weight"] == (None, "tp")


def test_weights_whose_activations_are_summed_up_are_no_pair():
    actual = specs(torch.nn.Sequential(SparseAttention(64)), (torch.zeros(2, 64, 64),))
    assert actual["0.out.weight"] == (None, "tp")
    assert actual["0.indexer_query.weight"] == actual["0.indexer_key.weight"] == (None, None)


class GatedNorm(torch.nn.Module):
    """A norm whose scale two small matrices compute."""

    def __init__(self):
        super().__init__()
        self.down, self.up = torch.nn.Linear(64, 4, bias=False), torch.nn.Linear(4, 64, bias=False)

    def forward(self, x):
        return torch.nn.functional.rms_norm(x, (64,)) * torch.sigmoid(self.up(torch.relu(self.down(x))))


def test_two_small_matrices_are_not_worth_a_sum_as_large_as_that_of_attention():
    actual = specs(torch.nn.Sequential(GatedNorm(), SparseAttention(8)), (torch.zeros(2, 16, 64),))
    assert actual["0.down.weight"] == actual["0.up.weight"] == (None, None)
    assert actual["1.out.weight"] == (None, "tp")
