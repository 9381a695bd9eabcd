"""Experts on their devices against transformers' own loop over experts on the CPU."""

import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.longcat_flash.modeling_longcat_flash import LongcatFlashExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts

from tpuport import compat
from tpuport.compat.operators.quantized import QuantizedArray
from tpuport.patches import transformers_experts as patch
from tpuport.patches.transformers_experts import (
    Weights,
    blocked_experts,
    dense_experts,
    experts_on_mesh,
    ragged_experts,
)

WIDTH, INNER, EXPERTS = 16, 24, 8


def mesh_of(tp, dp=1):
    return jax.make_mesh(
        (dp, 1, tp), ("dp", "sp", "tp"), axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[: tp * dp]
    )


def experts_of(kind, count=EXPERTS):
    """A module of experts as transformers has it: gated, gated with biases and interleaved, not gated."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": INNER}
    if kind == "mixtral":
        module = MixtralExperts(transformers.MixtralConfig(**sizes, num_local_experts=count))
    elif kind == "gpt_oss":
        module = GptOssExperts(transformers.GptOssConfig(**sizes, num_local_experts=count))
    else:
        config = transformers.NemotronHConfig(
            hidden_size=WIDTH, moe_intermediate_size=INNER, n_routed_experts=count, moe_latent_size=None
        )
        module = NemotronHExperts(config)
    for index, parameter in enumerate(module.parameters()):
        torch.nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(index))
    module.config._experts_implementation_internal = "eager"
    return module.eval().requires_grad_(False)


def routing(tokens, choices, count=EXPERTS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, WIDTH, generator=generator)
    scores = torch.rand(tokens, count, generator=generator)
    weight, chosen = scores.topk(choices, dim=-1)
    return hidden, chosen, weight


def ported(module, arguments, mesh):
    weights = {name: compat.to_jax(value) for name, value in module.named_parameters()}

    def forward(weights, arguments):
        with compat.environment(), torch.no_grad(), patch.use(module, mesh):
            out = torch.func.functional_call(module, compat.as_torch(weights), compat.as_torch(arguments))
        return compat.as_jax(out)

    return np.asarray(jax.jit(forward)(weights, tuple(compat.to_jax(value) for value in arguments)))


@pytest.mark.parametrize(
    ("tp", "dp"),
    [(1, 1), (2, 4), *(pytest.param(*mesh, marks=pytest.mark.slow) for mesh in ((8, 1), (1, 2)))],
)
@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss", "nemotron_h"])
def test_it_computes_what_transformers_loop_computes(kind, tp, dp):
    module, arguments = experts_of(kind), routing(tokens=12, choices=2)
    np.testing.assert_allclose(
        ported(module, arguments, mesh_of(tp, dp)), module(*arguments).numpy(), atol=1e-5
    )


@pytest.mark.parametrize("mesh", [None, (4, 1)], ids=["no mesh", "six experts on four devices"])
def test_without_a_mesh_that_fits_nothing_is_shared_out(mesh):
    module, arguments = experts_of("mixtral", count=6), routing(tokens=5, choices=2, count=6)
    actual = ported(module, arguments, mesh and mesh_of(*mesh))
    np.testing.assert_allclose(actual, module(*arguments).numpy(), atol=1e-5)


@functools.partial(jax.jit, static_argnames="transposed")
def both_forms(hidden, chosen, weight, weights, transposed):
    rest = (lambda x: jnp.tanh(x[..., ::2]) * x[..., 1::2], transposed)
    return [form(hidden, chosen, weight, weights, *rest) for form in (ragged_experts, dense_experts)]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.booleans())
def test_sorted_by_expert_or_dense_is_the_same_with_foreign_experts_ignored(seed, transposed):
    random = np.random.default_rng(seed)
    shapes = (
        [(4, 6, 10), (4, 10), (4, 5, 6), (4, 6)] if transposed else [(4, 10, 6), (4, 10), (4, 6, 5), (4, 6)]
    )
    weights = Weights(*(jnp.asarray(random.normal(size=shape), "f4") for shape in shapes))
    hidden, weight = random.normal(size=(7, 6)).astype("f4"), random.uniform(size=(7, 3)).astype("f4")
    chosen = random.integers(-4, 8, size=(7, 3)).astype("i4")
    np.testing.assert_allclose(*both_forms(hidden, chosen, weight, weights, transposed), atol=2e-5)


def quantized(random, experts, groups, inputs, outputs, columns, transposed):
    """Random weights of several experts in eight bits, and the numbers that they stand for."""
    values = random.integers(-127, 128, size=(experts, groups, inputs, outputs)).astype("i1")
    scale = random.uniform(0.001, 0.01, size=(experts, groups, outputs)).astype("f4")
    numbers = (values * scale[:, :, None]).reshape(experts, groups * inputs, outputs)[:, :columns]
    array = QuantizedArray(
        jnp.asarray(values), jnp.asarray(scale), None, None, None, 1, columns, np.dtype("f4"), transposed
    )
    return array, jnp.asarray(numbers if transposed else numbers.swapaxes(1, 2))


@settings(settings.get_profile("few"), deadline=None)
@given(
    seed=st.integers(0, 99),
    transposed=st.booleans(),
    tokens=st.sampled_from([1, 7, 40]),
    experts=st.sampled_from([1, 4, 9]),
    has_bias=st.booleans(),
)
def test_experts_in_few_bits_give_what_their_numbers_give(seed, transposed, tokens, experts, has_bias):
    random = np.random.default_rng(seed)
    first, first_numbers = quantized(random, experts, 2, 4, 10, 7, transposed)
    second, second_numbers = quantized(random, experts, 1, 5, 7, 5, transposed)
    biases = [random.normal(size=(experts, size)).astype("f4") if has_bias else None for size in (10, 7)]
    hidden, weight = (
        random.normal(size=(tokens, 7)).astype("f4"),
        random.uniform(size=(tokens, 3)).astype("f4"),
    )
    chosen = random.integers(-2, experts + 2, size=(tokens, 3)).astype("i4")
    rest = (lambda x: jnp.tanh(x[..., ::2]) * x[..., 1::2], transposed)
    blocked, dense = (jax.jit(form, static_argnums=(4, 5)) for form in (blocked_experts, dense_experts))
    actual = blocked(hidden, chosen, weight, Weights(first, biases[0], second, biases[1]), *rest)
    numbers = Weights(first_numbers, biases[0], second_numbers, biases[1])
    np.testing.assert_allclose(actual, dense(hidden, chosen, weight, numbers, *rest), atol=2e-5)
    assert np.array_equal(first.dequantize(), first_numbers)


def test_a_layer_is_one_all_reduce_of_its_output():
    mesh, shapes = mesh_of(8), [(EXPERTS, 2 * INNER, WIDTH), (EXPERTS, WIDTH, INNER)]
    sharding = jax.NamedSharding(mesh, jax.P("tp"))
    first, second = (jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding) for shape in shapes)

    def layer(hidden, chosen, weight, first, second):
        weights = Weights(first, None, second, None)
        return experts_on_mesh(hidden, chosen, weight, weights, lambda x: x[..., :INNER], False, mesh)

    small = [
        jax.ShapeDtypeStruct((4, *rest), dtype)
        for rest, dtype in (((WIDTH,), "f4"), ((2,), "i4"), ((2,), "f4"))
    ]
    text = jax.jit(layer).lower(*small, first, second).compile().as_text()
    assert text.count(" all-reduce(") == 1
    assert not any(f" {kind}(" in text for kind in ("all-gather", "all-to-all", "collective-permute"))


def test_bfloat16_stays_bfloat16():
    module, arguments = experts_of("mixtral").bfloat16(), routing(tokens=4, choices=2)
    arguments = (arguments[0].bfloat16(), arguments[1], arguments[2].bfloat16())
    actual = ported(module, arguments, mesh_of(8))
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_allclose(actual.astype("f4"), module(*arguments).float().numpy(), atol=0.05, rtol=0.05)


def test_the_configuration_is_put_back_and_torch_is_served_by_transformers():
    module, arguments = experts_of("gpt_oss"), routing(tokens=4, choices=2)
    expected = module(*arguments)
    with patch.use(module, None):
        assert module.config._experts_implementation == "tpuport"
        torch.testing.assert_close(module(*arguments), expected, atol=1e-5, rtol=1e-5)
    assert module.config._experts_implementation == "eager"
    torch.testing.assert_close(copy.deepcopy(module)(*arguments), expected)


def test_a_model_without_experts_is_left_alone():
    model = torch.nn.Linear(2, 2)
    with patch.use(model, None):
        assert model(torch.ones(1, 2)).shape == (1, 2)


def test_experts_that_give_what_they_get():
    """LongCat-Flash's, behind those with weights."""
    config = transformers.LongcatFlashConfig(
        hidden_size=WIDTH, expert_ffn_hidden_size=INNER, n_routed_experts=4, zero_expert_num=2
    )
    experts = LongcatFlashExperts(config)
    generator = torch.Generator().manual_seed(1)
    for parameter in experts.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    hidden = torch.randn(6, WIDTH, generator=generator)
    chosen = torch.tensor([[0, 5], [4, 1], [2, 3], [5, 4], [1, 0], [3, 5]])
    weights = torch.rand(6, 2, generator=generator)
    expected = LongcatFlashExperts.forward(experts, hidden, chosen, weights)
    with compat.environment():
        arguments = (compat.wrap(compat.to_jax(value)) for value in (hidden, chosen, weights))
        for parameter in (experts.gate_up_proj, experts.down_proj):
            parameter.requires_grad_(False)
        experts.to("jax")
        actual = patch.longcat_forward(experts, *arguments)
    np.testing.assert_allclose(
        np.asarray(compat.as_jax(actual)), expected.detach().numpy(), rtol=1e-5, atol=1e-5
    )
