"""What a traced function has to compute, against formulas by hand and torch's own counter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from torch.utils.flop_counter import FlopCounterMode

from tpuport.compat.operators.quantized import QuantizedArray
from tpuport.hardware.mesh import create_mesh
from tpuport.patches.transformers_experts import Weights, experts_on_mesh
from tpuport.topology import kernels

small = st.integers(1, 9)
WHOLE = P()


def flops(function, *shapes: tuple[int, ...]) -> float:
    return kernels.count_work(
        jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    ).flops


def torch_flops(function, *shapes: tuple[int, ...]) -> int:
    with FlopCounterMode(display=False) as counter:
        function(*(torch.empty(shape, device="meta") for shape in shapes))
    return counter.get_total_flops()


@settings(deadline=None)
@given(small, small, small, small)
def test_products_are_torchs(b, m, k, n) -> None:
    assert flops(jnp.matmul, (m, k), (k, n)) == torch_flops(torch.matmul, (m, k), (k, n)) == 2 * m * k * n
    assert flops(jnp.matmul, (b, m, k), (b, k, n)) == torch_flops(torch.bmm, (b, m, k), (b, k, n))
    heads = "bqhd,bkhd->bhqk"
    shapes = (b, m, k, 4), (b, n, k, 4)
    assert flops(lambda x, y: jnp.einsum(heads, x, y), *shapes) == 2 * b * m * n * k * 4


@settings(deadline=None, max_examples=30)
@given(
    batch=st.integers(1, 3), groups=st.integers(1, 3), into=st.integers(1, 4), out=st.integers(1, 4),
    size=st.integers(5, 12), kernel=st.integers(1, 3), stride=st.integers(1, 2), padding=st.integers(0, 2),
)  # fmt: skip
def test_convolutions_are_torchs(batch, groups, into, out, size, kernel, stride, padding) -> None:
    x, weight = (batch, groups * into, size, size + 1), (groups * out, into, kernel, kernel)

    def ours(x, weight):
        return lax.conv_general_dilated(
            x, weight, (stride, stride), [(padding, padding)] * 2, feature_group_count=groups
        )

    def theirs(x, weight):
        return torch.nn.functional.conv2d(x, weight, stride=stride, padding=padding, groups=groups)

    assert flops(ours, x, weight) == torch_flops(theirs, x, weight)


@pytest.mark.parametrize("stride", [2, 3])
def test_a_transposed_convolution_is_torchs(stride) -> None:
    def ours(x, weight):
        return lax.conv_transpose(
            x, weight, (stride, stride), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW")
        )

    def theirs(x, weight):
        return torch.nn.functional.conv_transpose2d(x, weight.transpose(0, 1), stride=stride)

    shapes = (2, 6, 7, 5), (8, 6, 4, 4)
    assert flops(ours, *shapes) == torch_flops(theirs, *shapes)


@settings(deadline=None, max_examples=20)
@given(small, small, small)
def test_loops_and_branches(rows, width, length) -> None:
    product = 2 * rows * width * width
    x, weight = (rows, width), (width, width)

    def scanned(x, weight):
        return lax.scan(lambda x, _: (x @ weight, None), x, length=length)[0]

    def counted(x, weight):
        return lax.fori_loop(0, length, lambda _, x: x @ weight, x)

    def unknown(x, weight):
        return lax.while_loop(lambda x: x.sum() < 1, lambda x: x @ weight, x)

    def either(x, weight):
        return lax.cond(x.sum() > 0, lambda: x @ weight @ weight, lambda: x @ weight)

    assert flops(scanned, x, weight) == flops(counted, x, weight) == length * product
    assert flops(unknown, x, weight) == product
    assert flops(either, x, weight) == 2 * product


def test_functions_in_functions() -> None:
    @jax.custom_vjp
    def own(x, weight):
        return x @ weight

    own.defvjp(lambda x, weight: (x @ weight, (x, weight)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))

    def called(x, weight):
        once = jax.jit(lambda x: jnp.tanh(x @ weight))
        return jax.checkpoint(once)(once(own(x, weight)))

    product = 2 * 3 * 8 * 8
    assert flops(called, (3, 8), (8, 8)) == 3 * product
    backward = jax.grad(lambda x, weight: (x @ weight).sum(), argnums=(0, 1))
    assert flops(backward, (3, 8), (8, 8)) >= 2 * product
    assert flops(jnp.add, (3, 8), (3, 8)) == 0


def test_numbers_with_several_digits_count_once() -> None:
    groups, inputs, outputs, rounds, digits = 4, 64, 6, 3, 4
    values, scale = jnp.ones((groups, inputs, outputs), jnp.int4), jnp.ones((groups, outputs))
    weight = QuantizedArray(values, scale, None, None, None, 1, groups * inputs, np.dtype(np.float32))

    def scanned(row):
        return lax.scan(lambda row, _: (weight.linear(row).mean() * row, None), row, length=rounds)[0]

    work = kernels.count_work(jax.make_jaxpr(scanned)(jnp.zeros(groups * inputs)))
    product = 2 * groups * inputs * outputs
    assert work.flops == rounds * product
    # Two groups fill a matrix unit: the digits of each have zeros for the other.
    assert work.digit_flops == rounds * (2 * digits - 1) * product


def test_products_by_groups_are_those_of_one() -> None:
    def experts(x, weights):
        return lax.ragged_dot(x, weights, jnp.array([1, 4, 2, 5]))

    shapes = (12, 16), (4, 16, 32)
    assert flops(experts, *shapes) == 2 * 12 * 16 * 32
    gradient = jax.grad(lambda weights, x: (experts(x, weights) ** 2).sum())
    assert flops(gradient, *reversed(shapes)) == 2 * 2 * 12 * 16 * 32, (
        "forward, and each row once for the weights"
    )


def split_product(x: P, weights: P, out: P, sizes: P = WHOLE, turned: bool = False, sent: bool = False):
    """A product by groups [M, K] [X, K, N] on 2 x 4 devices, each with all rows or a part, by all groups or a part."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("dp", "tp"))

    def local(x, weights, sizes):
        x = lax.all_to_all(x, "tp", 0, 0, tiled=True) if sent else x
        made = lax.ragged_dot(x, weights.swapaxes(1, 2) if turned else weights * 2, sizes)
        return lax.psum(made, "tp") if out == P("dp") else made

    return jax.shard_map(local, mesh=mesh, in_specs=(x, weights, sizes), out_specs=out, check_vma=False)


def test_devices_that_share_out_groups_do_each_row_once() -> None:
    rows, inner, width, groups = 64, 16, 32, 8
    whole = 2 * rows * inner * width

    def of(split, turned: bool = False) -> float:
        shapes = (groups, width, inner) if turned else (groups, inner, width)
        arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((rows, inner), shapes)]
        return kernels.count_work(
            jax.make_jaxpr(split)(*arrays, jax.ShapeDtypeStruct((groups,), jnp.int32))
        ).flops

    experts = split_product(P("dp"), P("tp"), P("dp"), P("tp"))
    assert of(experts) == whole, "each device of tp has all rows of its dp, and a quarter of the groups"
    assert of(split_product(P("dp"), P("tp"), P("dp"), P("tp"), turned=True), turned=True) == whole
    assert of(split_product(P("dp"), P(None, None, "tp"), P("dp", "tp"))) == whole, (
        "and a quarter of the columns"
    )
    assert of(split_product(P("dp"), P(), P("dp"))) == whole, "along tp, all do the same"
    sent = split_product(P(("dp", "tp")), P("tp"), P(("dp", "tp")), P("tp"), sent=True)
    assert of(sent) == whole, "rows are sent to where their group is"

    def layers(x, weights, sizes):
        stacked = jnp.broadcast_to(weights, (3, *weights.shape))
        return lax.scan(lambda x, each: (experts(x, each, sizes)[:, :inner], None), x, stacked)[0]

    assert of(layers) == 3 * whole


@pytest.mark.parametrize(("dp", "tp"), [(1, 1), (1, 4), (1, 8), (2, 4)])
@pytest.mark.parametrize(("experts", "choices"), [(8, 2), (16, 4)])
def test_experts_over_a_mesh_are_what_the_tokens_choose(dp, tp, experts, choices) -> None:
    """Two products with weights for each pair of a token and an expert, and on every device of tp the weighted sum."""
    tokens, width, inner = 64, 32, 48
    mesh = create_mesh(dp, 1, tp, devices=jax.devices()[: dp * tp])

    def layer(hidden, chosen, weight, first, second):
        weights = Weights(first, None, second, None)
        return experts_on_mesh(hidden, chosen, weight, weights, lambda x: x[..., :inner], False, mesh)

    shapes = [
        (tokens, width),
        (tokens, choices),
        (tokens, choices),
        (experts, 2 * inner, width),
        (experts, width, inner),
    ]
    kinds = [jnp.float32, jnp.int32, jnp.float32, jnp.float32, jnp.float32]
    arrays = [jax.ShapeDtypeStruct(shape, kind) for shape, kind in zip(shapes, kinds, strict=True)]
    pairs = tokens * choices
    products = 2 * pairs * (width * 2 * inner + inner * width)
    assert kernels.count_work(jax.make_jaxpr(layer)(*arrays)).flops == products + tp * 2 * pairs * width


def test_all_devices_together() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("sp", "tp"))
    shapes = (8, 16), (16, 32)
    whole = 2 * 8 * 16 * 32
    for x, weight, out in [
        (P("sp"), P(None, "tp"), P("sp", "tp")),
        (P("sp"), P(), P("sp")),  # along tp, all do the same
        (P(), P(), P()),
    ]:
        split = jax.shard_map(jnp.matmul, mesh=mesh, in_specs=(x, weight), out_specs=out)
        assert flops(split, *shapes) == whole
    nested = jax.shard_map(
        lambda x, weight: lax.psum(x @ weight, "tp"),
        mesh=mesh,
        in_specs=(P(None, ("tp",)), P("tp")),
        out_specs=P(),
    )
    assert flops(nested, *shapes) == whole


def test_kernels_have_what_they_estimate() -> None:
    def product(x, weight, made):
        made[...] = x[...] @ weight[...]

    def called(estimate):
        return lambda x, weight: pl.pallas_call(
            product, out_shape=jax.ShapeDtypeStruct((64, 32), jnp.float32), grid=(4,), cost_estimate=estimate,
            in_specs=[pl.BlockSpec((16, 128), lambda i: (i, 0)), pl.BlockSpec((128, 32), lambda i: (0, 0))],
            out_specs=pl.BlockSpec((16, 32), lambda i: (i, 0)),
        )(x, weight)  # fmt: skip

    shapes = (64, 128), (128, 32)
    assert flops(called(pl.CostEstimate(flops=123, transcendentals=0, bytes_accessed=0)), *shapes) == 123
    assert flops(called(None), *shapes) == 2 * 64 * 128 * 32
