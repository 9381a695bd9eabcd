"""TPC021: fused projections whose parts are cut, and the same work laid out so that they are not."""

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.sharding import PartitionSpec

from tpuport.sharding import ShardingRules
from tpuport.topology import Decode, Prefill, compile_for
from tpuport.topology.advice import advise
from tpuport.topology.advice.traced_products import find_products

WIDTH, INNER, PARTS, DEVICES = 512, 1024, 2, 4
REARRANGING = ("all-gather", "all-to-all", "collective-permute")


def fused(weights, x):
    gate, up = jnp.split(x @ weights["gate_up.weight"].T, PARTS, -1)
    return (jax.nn.silu(gate) * up) @ weights["down.weight"].T


def put_together(weights, x):
    made = jnp.concatenate([x @ weights["gate.weight"].T, x @ weights["up.weight"].T], -1)
    gate, up = jnp.split(made, PARTS, -1)
    return (jax.nn.silu(gate) * up) @ weights["down.weight"].T


def in_groups(weights, x):
    """The gate and up of each group behind each other, as heads keep their own query, key and value."""
    made = (x @ weights["gate_up.weight"].T).reshape(*x.shape[:-1], DEVICES, PARTS, -1)
    gate, up = made[..., 0, :], made[..., 1, :]
    return (jax.nn.silu(gate) * up).reshape(*x.shape[:-1], -1) @ weights["down.weight"].T


def evidence(mesh, function, rows, *spec):
    names = ("gate", "up") if function is put_together else ("gate_up",)
    each = PARTS * INNER // len(names)
    weights = {f"{name}.weight": mesh.array((each, WIDTH), *spec) for name in names}
    weights["down.weight"] = mesh.array((WIDTH, INNER), None, "tp")
    return mesh.evidence(function, weights, mesh.array((rows, WIDTH)))


@pytest.mark.parametrize("rows", [256, 1])
@pytest.mark.parametrize(
    "spec", [("tp", None), pytest.param((), marks=pytest.mark.slow)], ids=["shared", "whole"]
)
def test_parts_that_devices_do_not_hold_are_sent(programs, rows, spec) -> None:
    """Of one row the product is a sum of an elementwise product; a weight left whole has the same collectives."""
    given = evidence(programs(tp=DEVICES), fused, rows, *spec)
    made = [collective for collective in given.report.collectives if collective.kind in REARRANGING]
    [one] = [one for one in advise(given) if one.rule == "TPC021"]
    assert sum(one.count for one in made) > 0
    assert one.message.startswith(f"{sum(one.count for one in made)} collective-permute")
    assert "gate_up.weight" in one.message
    assert f"{PARTS} parts" in one.message
    # What the permutations leave on a device, by the compiled program.
    assert (one.cost, one.unit) == (sum(one.nbytes for one in made), "bytes sent")
    assert "PartitionSpec('tp', None)" in one.remedy
    assert "torch.cat([part(x) for part in self.parts], -1)" in one.remedy
    assert one.source is not None
    assert one.source.function == "fused"


@pytest.mark.parametrize("function", [put_together, in_groups])
def test_parts_that_devices_hold_are_not(programs, function) -> None:
    """Both remedies: no collective but the all-reduce after the second weight, and no finding."""
    given = evidence(programs(tp=DEVICES), function, 256, "tp", None)
    assert {collective.kind for collective in given.report.collectives} == {"all-reduce"}
    assert advise(given) == ()


def heads(three_first):
    """Query, key and value of 8 heads in one weight, by parts or by heads."""

    def f(weights, x):
        made = x @ weights["qkv.weight"].T
        if three_first:
            q, k, v = jnp.moveaxis(made.reshape(2, 256, 3, 8, 64), 2, 0)
        else:
            q, k, v = jnp.moveaxis(made.reshape(2, 256, 8, 3, 64), 3, 0)
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
        return jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(2, 256, WIDTH) @ weights["o.weight"].T

    return f


@pytest.mark.parametrize(("three_first", "found"), [(True, ["TPC021"]), (False, [])], ids=["parts", "heads"])
def test_a_view_of_heads_keeps_them_whole(programs, three_first, found) -> None:
    mesh = programs(tp=DEVICES)
    weights = {
        "qkv.weight": mesh.array((3 * WIDTH, WIDTH), "tp", None), "o.weight": mesh.array((WIDTH, WIDTH), None, "tp"),
    }  # fmt: skip
    assert mesh.found(heads(three_first), weights, mesh.array((2, 256, WIDTH))) == found


def looped(weights, x):
    def body(x, weights):
        gate, up = jnp.split(x @ weights["gate_up"].T, PARTS, -1)
        return x + (gate * up) @ weights["down"].T, None

    return jax.lax.scan(body, x, {"gate_up": weights["l.gate_up.weight"], "down": weights["l.down.weight"]})[
        0
    ]


def test_products_are_counted_as_often_as_they_run() -> None:
    weights = {
        "l.gate_up.weight": jax.ShapeDtypeStruct((3, PARTS * INNER, WIDTH), jnp.bfloat16),
        "l.down.weight": jax.ShapeDtypeStruct((3, WIDTH, INNER), jnp.bfloat16),
    }
    traced = jax.jit(looped).trace(weights, jax.ShapeDtypeStruct((7, WIDTH), jnp.bfloat16))
    found = find_products(traced.jaxpr, weights)
    assert found.fused == {"l.gate_up.weight": PARTS}
    flops = {one.weight: one.flops for one in found.all}
    assert flops == {
        "l.gate_up.weight": 2 * 3 * 7 * PARTS * INNER * WIDTH, "l.down.weight": 2 * 3 * 7 * INNER * WIDTH,
    }  # fmt: skip


def test_a_convolution_is_a_product_with_its_weight() -> None:
    weights = {"patch.weight": jax.ShapeDtypeStruct((32, 3, 4, 4), jnp.float32)}

    def f(weights, images):
        return jax.lax.conv(images, weights["patch.weight"], (4, 4), "VALID")

    traced = jax.jit(f).trace(weights, jax.ShapeDtypeStruct((2, 3, 16, 16), jnp.float32))
    [one] = find_products(traced.jaxpr, weights).all
    assert one.output.shape == (2, 32, 4, 4)
    assert one.flops == 2 * (2 * 32 * 4 * 4) * (3 * 4 * 4)


class Parts(torch.nn.Module):
    """Linear layers in the place of one: what the remedy says."""

    def __init__(self, inputs: int, *outputs: int) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(inputs, output, bias=False) for output in outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.parts], -1)


def phi(in_parts: bool):
    from transformers import Phi3Config, Phi3ForCausalLM

    model = Phi3ForCausalLM(Phi3Config(
        hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=2, num_attention_heads=8, vocab_size=8192,
        num_key_value_heads=8, max_position_embeddings=2048, pad_token_id=0, eos_token_id=1, bos_token_id=2,
    ))  # fmt: skip
    for layer in model.model.layers if in_parts else ():
        layer.self_attn.qkv_proj, layer.mlp.gate_up_proj = (
            Parts(WIDTH, *[WIDTH] * 3),
            Parts(WIDTH, INNER, INNER),
        )
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", [Prefill(batch=1, length=256), Decode(batch=1, max_cache_len=1024)], ids=["prefill", "decode"]
)
def test_phi_3_needs_two_all_reduces_a_layer(task) -> None:
    rules = ShardingRules({
        r".*(embed_tokens|lm_head|qkv_proj|gate_up_proj|parts\.\d+)\.weight": PartitionSpec("tp", None),
        r".*(o_proj|down_proj)\.weight": PartitionSpec(None, "tp"),
    })  # fmt: skip
    options = {"topology": "v6e:2x2", "tp": 4, "rules": rules, "dtype": "bfloat16", "scan_layers": False}
    cut, parts = (compile_for(lambda one=one: phi(one), task, **options) for one in (False, True))
    # Two a layer, the embedding's, and two for the choice of a token; cut, 11 more in each layer.
    assert [sum(collective.count for collective in report.collectives) for report in (cut, parts)] == [29, 7]
    assert [finding.rule for finding in cut.advice] == ["TPC021", "TPC021"]
    assert parts.advice == ()
