"""Operators that torch computes on the host: results are torch's own, so this is about the way there and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks import operator_table
from benchmarks.operator_samples import database, record, supports
from tpuport import compat
from tpuport.compat.operators.host_operators import NAMES
from tpuport.errors import PortError
from tpuport.hardware import assume_generation

X = torch.linspace(-3, 3, 7)


# One argument and result, several results, and tensors among keyword arguments.
UNLIKE_OTHERS = ("special_airy_ai", "linalg_lu", "segment_reduce")


def _in_database(name):
    """The names under which torch's database has an operator, which may be several or none."""
    last = name.strip("_").removeprefix("special_").removeprefix("linalg_")
    return [operator for operator in database() if operator.partition("[")[0].rpartition(".")[2] == last]


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in UNLIKE_OTHERS else [pytest.mark.slow]) for name in NAMES]
)
def test_samples_of_torchs_database(name, dtype):
    for operator in _in_database(name):
        if supports(database()[operator], dtype):
            entry = record(operator, dtype, compiled=True, limit=6)
            assert operator_table.verdict(entry) in ("equal", "needs a value"), entry


def _on_arrays(function):
    """A function of torch as one of arrays."""

    def call(*arrays):
        with compat.environment():
            return compat.as_jax(function(*map(compat.wrap, arrays)))

    return call


airy = _on_arrays(torch.special.airy_ai)


def test_forms_of_a_call(agree):
    degrees = torch.tensor([-1, 0, 1, 2, 5, 9])
    polynomial = torch.special.chebyshev_polynomial_t
    agree(
        lambda x, n: (polynomial(x[:, None], n), polynomial(x, 3), polynomial(0.4, n)),
        X,
        degrees,
        tolerance=0,
    )
    agree(lambda x: torch.special.airy_ai(x, out=torch.empty_like(x)), X, tolerance=0)
    agree(torch.special.airy_ai, torch.arange(4), tolerance=0)
    agree(torch.special.airy_ai, torch.ones(0, 3), tolerance=0)


def test_errors_are_torchs():
    halves = X.bfloat16()
    with pytest.raises(NotImplementedError, match="airy_ai_cpu"):
        torch.special.airy_ai(halves)
    with pytest.raises(NotImplementedError, match="airy_ai_cpu"):
        airy(compat.to_jax(halves))
    with pytest.raises(jax.errors.JaxRuntimeError, match="airy_ai_cpu"):
        jax.block_until_ready(jax.jit(airy)(compat.to_jax(halves)))


def test_rows_one_by_one():
    rows = jnp.asarray(X.numpy()).reshape(7, 1)
    expected = torch.special.airy_ai(X).numpy()[:, None]
    np.testing.assert_array_equal(jax.jit(jax.vmap(airy))(rows), expected)


def test_no_gradient_that_torch_has_not():
    for gradient in (jax.grad(lambda x: airy(x).sum()), jax.jit(jax.grad(lambda x: airy(x).sum()))):
        with pytest.raises(PortError, match="torch has no gradient of it"):
            gradient(jnp.ones(3))


def test_gradients_are_torchs():
    def loss(s, q):
        return torch.special.zeta(s, q).sin().sum()

    s, q = torch.tensor(2.5), (X.abs() + 1).requires_grad_()
    (expected,) = torch.autograd.grad(loss(s, q), [q])
    # torch has none for the power, which is not asked for.
    gradient = jax.grad(_on_arrays(loss), argnums=1)
    for function in (gradient, jax.jit(gradient)):
        mine = function(jnp.asarray(2.5), jnp.asarray(q.detach().numpy()))
        np.testing.assert_allclose(mine, expected.numpy(), rtol=1e-5)


def test_large_arrays_do_not_wait_for_themselves():
    x = jnp.ones((2000, 2000))
    compiled = jax.jit(airy)
    for _ in range(5):
        x = x + 0 * compiled(x)
    np.testing.assert_array_equal(compiled(x)[0, 0], torch.special.airy_ai(torch.ones(())).numpy())


def test_a_mesh():
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec("a", "b"))
    host = torch.randn(16, 50, generator=torch.Generator().manual_seed(0))
    x = jax.device_put(host.numpy(), sharding)
    expected = torch.special.airy_ai(host * 2).numpy()
    twice = _on_arrays(lambda x: torch.special.airy_ai(x * 2))
    per_shard = jax.shard_map(twice, mesh=mesh, in_specs=sharding.spec, out_specs=sharding.spec)
    for function in (twice, jax.jit(twice), jax.jit(twice, out_shardings=sharding), jax.jit(per_shard)):
        np.testing.assert_array_equal(jax.block_until_ready(function(x)), expected)


def test_no_described_tpu():
    with (
        assume_generation("v5e"),
        pytest.raises(PortError, match=r"special_airy_ai.* which a program for a described TPU cannot call"),
    ):
        jax.jit(airy)(jnp.ones(3))


def test_no_several_processes(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(PortError, match="several processes"):
        jax.jit(airy)(jnp.ones(3))
