"""Random numbers of compiled functions: new ones in each call, the same for a seed, on any number of devices."""

import contextlib
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import tpuport
from tpuport import PortError, compat

X = torch.linspace(-1, 1, 32).reshape(4, 8)


def host(tensor: torch.Tensor) -> torch.Tensor:
    return compat.to_torch(compat.as_jax(tensor))


class Block(torch.nn.Module):
    """Draws in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(torch.tanh(self.linear(x))) + 0.1 * torch.randn_like(x)


class Network(torch.nn.Module):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(depth))

    def forward(self, x: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        if generator is not None:
            x = x + torch.rand(x.shape, generator=generator, device=x.device)
        return x


def ported(mesh: jax.sharding.Mesh | None = None) -> torch.nn.Module:
    torch.manual_seed(0)
    return tpuport.port(Network(), mesh=mesh).train()


def calls(function: Callable, count: int = 2, seed: int = 1) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [host(function(X)) for _ in range(count)]


@pytest.fixture(scope="module")
def drawn() -> list[torch.Tensor]:
    """What calls of the compiled network give on one device."""
    return calls(tpuport.compile(ported()))


def assert_same(ones: list[torch.Tensor], others: list[torch.Tensor], tolerance: float = 1e-5) -> None:
    for one, other in zip(ones, others, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_calls_differ_and_a_seed_repeats_them_without_compiling_again() -> None:
    function = tpuport.compile(ported())
    first = calls(function, 3)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[1], first[2])
    assert_same(calls(function, 3), first, tolerance=0)
    assert not torch.equal(calls(function, 1, seed=2)[0], first[0])
    assert function.program.compilations == 1


def test_eager_calls_draw_the_same(drawn: list[torch.Tensor]) -> None:
    model = ported()
    with compat.environment():
        eager = calls(lambda x: model(x.to("jax")))
    assert_same(drawn, eager)


def test_one_device_and_eight_draw_the_same(drawn: list[torch.Tensor]) -> None:
    on_eight = calls(tpuport.compile(ported(tpuport.create_mesh(dp=4, tp=2))))
    assert_same(on_eight, drawn)


def test_rows_that_are_divided_over_devices_differ() -> None:
    mesh = tpuport.create_mesh(dp=8)
    rows = jax.device_put(
        jnp.zeros((8, 16)), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("dp"))
    )
    function = tpuport.compile(lambda x: torch.randn_like(x))
    torch.manual_seed(0)
    divided = host(function(rows))
    assert len(divided.unique()) == divided.numel()
    torch.manual_seed(0)
    assert torch.equal(host(function(torch.zeros(8, 16))), divided)


def test_each_block_of_a_loop_draws_its_own(drawn: list[torch.Tensor]) -> None:
    looped_function = tpuport.compile(ported(), scan_layers=True)
    assert_same(calls(looped_function), drawn)
    assert [blocks.count for blocks in looped_function.scanned] == [2]
    draw_only = tpuport.compile(lambda x: torch.stack([torch.rand_like(x) for _ in range(3)]))
    drawn = host(draw_only(X))
    assert len(drawn.unique()) == drawn.numel()


@pytest.mark.parametrize("kind", ["Beta", "Gamma"])
def test_distributions_of_numbers_draw_anew_in_each_call(kind: str) -> None:
    distribution = getattr(torch.distributions, kind)
    first, second = calls(tpuport.compile(lambda x: x + distribution(0.5, 0.5).sample()))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(lambda x: torch.native_dropout(x, 0.5, True)[0], id="native_dropout"),
        pytest.param(lambda x: torch.ops.aten.exponential(x), id="exponential"),
        pytest.param(lambda x: torch.ops.aten.geometric(x, 0.1), id="geometric"),
    ],
)
def test_operators_draw_anew_from_a_tensor_of_the_host(draw: Callable) -> None:
    constant = torch.full((64,), -1.0)
    first, second = calls(tpuport.compile(lambda x: draw(constant).to(x.device) + x.sum()))
    assert not torch.equal(first, second)


def test_what_does_not_train_stays_on_the_host() -> None:
    def add(x: torch.Tensor) -> torch.Tensor:
        constant = torch.full((4, 8), -1.0)
        slopes = torch.nn.functional.rrelu(constant, training=False) + constant
        return x + (slopes + torch.native_dropout(constant, 0.5, False)[0]).to(x.device)

    torch.testing.assert_close(host(tpuport.compile(add)(X)), add(X))


def test_a_generator_of_each_call_is_no_new_program() -> None:
    function = tpuport.compile(
        lambda x, generator: torch.randn(x.shape, generator=generator, device=x.device)
    )
    first = host(function(X, torch.Generator().manual_seed(3)))
    again = host(function(X, torch.Generator().manual_seed(3)))
    other = host(function(X, torch.Generator().manual_seed(4)))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert function.program.compilations == 1
    generator = torch.Generator().manual_seed(3)
    assert torch.equal(host(function(X, generator)), first)
    assert not torch.equal(host(function(X, generator)), first)
    with compat.environment():
        eager = torch.randn(X.shape, generator=torch.Generator().manual_seed(3), device="jax")
    torch.testing.assert_close(host(eager), first)


def test_generators_among_the_arguments_are_told_apart() -> None:
    def draw(x: torch.Tensor, generators: list[torch.Generator]) -> list[torch.Tensor]:
        return [torch.rand(4, generator=generator, device=x.device) for generator in generators]

    function = tpuport.compile(draw)

    def run(*generators: torch.Generator) -> list[torch.Tensor]:
        return [host(tensor) for tensor in function(X, list(generators))]

    one, two = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    of_one, of_two = run(one, two)
    assert torch.equal(run(torch.Generator().manual_seed(2), torch.Generator().manual_seed(1))[1], of_one)
    assert not torch.equal(of_one, of_two)
    shared = torch.Generator().manual_seed(1)
    first, second = run(shared, shared)
    assert torch.equal(first, of_one)
    assert not torch.equal(second, first)


def test_a_generator_of_the_model_goes_on() -> None:
    generator = torch.Generator()
    function = tpuport.compile(lambda x: x + torch.rand(x.shape, generator=generator, device=x.device))
    generator.manual_seed(5)
    first, second = host(function(X)), host(function(X))
    assert not torch.equal(first, second)
    generator.manual_seed(5)
    assert torch.equal(host(function(X)), first)


def test_a_generator_that_each_call_makes_draws_the_same() -> None:
    def draw(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(x.shape, generator=torch.Generator().manual_seed(1), device=x.device)

    function = tpuport.compile(draw)
    assert torch.equal(host(function(X)), host(function(X)))


def test_states_can_be_saved_and_restored() -> None:
    function = tpuport.compile(ported())
    torch.manual_seed(0)
    function(X)
    state = torch.get_rng_state()
    expected = host(function(X))
    torch.set_rng_state(state)
    assert torch.equal(host(function(X)), expected)
    for arguments in ({}, {"devices": [0], "device_type": "jax"}):
        torch.set_rng_state(state)
        with torch.random.fork_rng(**arguments):
            function(X)
        assert torch.equal(host(function(X)), expected)


def test_draws_on_the_host_belong_to_the_program() -> None:
    """diffusers draws on the host, `torch.randn(shape, generator=generator).to(device)`."""

    def draw(x: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        return (
            torch.randn(x.shape, generator=generator, device="cpu").to(x.device),
            torch.rand(x.shape).to(x.device),
            torch.randn_like(torch.zeros(8)).to(x.device),
            torch.bernoulli(torch.full((64,), 0.5)).to(x.device),
            torch.randperm(32).to(x.device),
            torch.normal(0.0, 1.0, (4,)).to(x.device),
        )

    function = tpuport.compile(draw)
    generator = torch.Generator()
    for one, other in zip(function(X, generator), function(X, generator), strict=True):
        assert not torch.equal(host(one), host(other))


def test_programs_that_draw_nothing_have_no_argument_for_it() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).eval()
    function = tpuport.compile(tpuport.port(model))
    before = torch.get_rng_state()
    function(X)
    assert torch.equal(torch.get_rng_state(), before)
    assert "ui32" not in function.lower(X).as_text()
    model.train()
    assert "ui32" in function.lower(X).as_text()


def test_a_program_in_a_program_draws_what_it_would_alone() -> None:
    inner = tpuport.compile(lambda x: x + torch.randn_like(x))
    outer = tpuport.compile(lambda x: inner(inner(x)))
    nested = calls(outer)
    alone = calls(lambda x: inner(inner(x)))
    assert_same(nested, alone)
    assert outer.program.compilations == 1


def test_gradients_and_rematerialization_see_one_mask() -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        def loss(array: jax.Array) -> jax.Array:
            return compat.as_jax(torch.nn.functional.dropout(compat.wrap(array), 0.5).sum())

        return compat.wrap(jax.grad(jax.checkpoint(loss))(compat.as_jax(x)))

    function = tpuport.compile(gradient)
    first, second = calls(function)
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(first, second)


def test_a_failed_trace_leaves_nothing_behind() -> None:
    def fail(x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(x)
        raise ValueError(noise.shape)

    for _ in range(2):
        with contextlib.suppress(ValueError):
            tpuport.compile(fail)(X)
    assert host(tpuport.compile(lambda x: torch.randn_like(x))(X)).isfinite().all()
    with compat.environment():
        assert host(torch.randn(4, device="jax")).isfinite().all()


def _loop(x: torch.Tensor) -> torch.Tensor:
    def body(_: jax.Array, array: jax.Array) -> jax.Array:
        return array + compat.as_jax(torch.randn_like(compat.wrap(array)))

    return compat.wrap(jax.lax.fori_loop(0, 3, body, compat.as_jax(x)))


def _seed(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn_like(x)


_GENERATOR = torch.Generator()


def _seed_generator(x: torch.Tensor) -> torch.Tensor:
    _GENERATOR.manual_seed(0)
    return torch.randn(x.shape, generator=_GENERATOR, device=x.device)


def _fill(x: torch.Tensor) -> torch.Tensor:
    return x + torch.empty(x.shape).normal_().to(x.device)


def _draw_into(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(8, out=torch.ones(8)).to(x.device)


def _slope(x: torch.Tensor) -> torch.Tensor:
    return x + torch.nn.functional.rrelu(-torch.ones(8), training=True).to(x.device)


def _fork(x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        return torch.randn_like(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_fork, "inside of torch.random.fork_rng"),
        (_loop, "in each iteration"),
        (_seed, "torch.manual_seed was called in compiled code"),
        pytest.param(_seed_generator, "torch.Generator was seeded", marks=pytest.mark.slow),
        (_fill, "fills a tensor on the host"),
        (_draw_into, "fills a tensor on the host"),
        (_slope, "fills a tensor on the host"),
    ],
)
def test_draws_that_would_be_repeated_are_refused(function: Callable, message: str) -> None:
    with pytest.raises(PortError, match=message) as error:
        tpuport.compile(function)(X)
    assert "fix:" in str(error.value)


_STATE = torch.get_rng_state()


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("torch.manual_seed", lambda _: torch.manual_seed(0)),
        ("torch.seed", lambda _: torch.random.seed()),
        ("torch.initial_seed", lambda _: torch.initial_seed()),
        ("torch.get_rng_state", lambda _: torch.get_rng_state()),
        ("torch.set_rng_state", lambda _: torch.set_rng_state(_STATE)),
        ("torch.Generator.manual_seed", lambda generator: generator.manual_seed(0)),
        ("torch.Generator.seed", lambda generator: generator.seed()),
        ("torch.Generator.initial_seed", lambda generator: generator.initial_seed()),
        ("torch.Generator.get_state", lambda generator: generator.get_state()),
        ("torch.Generator.set_state", lambda generator: generator.set_state(_STATE)),
        ("torch.Generator.clone_state", lambda generator: generator.clone_state()),
    ],
)
def test_seeds_and_states_in_compiled_code_are_refused(name: str, use: Callable) -> None:
    def function(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        use(generator)
        return x

    with pytest.raises(PortError, match=f"{name} was called in compiled code"):
        tpuport.compile(function)(X, torch.Generator())


def test_code_of_torch_may_save_a_state() -> None:
    """Also a generator that the code creates has the same seed in each call."""

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng():
            x = checkpoint(torch.relu, x, use_reentrant=False)
        return x + torch.Generator().manual_seed(5).initial_seed()

    assert torch.equal(host(tpuport.compile(function)(X)), X.relu() + 5)


def test_programs_that_tpuport_does_not_trace() -> None:
    def draw(array: jax.Array) -> jax.Array:
        with compat.environment():
            return compat.as_jax(torch.randn_like(compat.wrap(array)))

    with pytest.raises(PortError, match="a program of your own"):
        jax.jit(draw)(jnp.ones(3))

    @jax.jit
    def draw_with_key(array: jax.Array, key: jax.Array) -> jax.Array:
        with compat.environment().override_property(prng=key):
            return draw(array)

    one, two = (draw_with_key(jnp.ones(3), jax.random.key(seed)) for seed in range(2))
    assert not jnp.array_equal(one, two)


def test_a_number_of_draws_that_changes_with_each_trace_is_refused() -> None:
    # How far an iterator has got is nothing that can be seen from outside.
    traces = itertools.count(1)

    def draw(x: torch.Tensor) -> torch.Tensor:
        for _ in range(64 + next(traces)):  # more than the first trace has keys for
            x = x + torch.randn_like(x)
        return x

    with pytest.raises(PortError, match="another number"):
        tpuport.compile(draw)(X)


@pytest.mark.parametrize("default_first", [False, True])
def test_the_default_generator_is_an_argument_like_any_other(default_first: bool) -> None:
    def draw(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x + torch.rand(2, generator=generator, device="jax")

    compiled = tpuport.compile(draw)
    generators = [torch.Generator().manual_seed(3), torch.default_generator]
    for generator in generators[::-1] if default_first else generators:
        torch.manual_seed(5)
        generator.manual_seed(7)
        states = [torch.equal(each.get_state(), generator.get_state()) for each in generators]
        actual = compiled(torch.zeros(2).to("jax"), generator)
        generator.manual_seed(7)
        expected = torch.rand(2, generator=generator, device="jax")
        assert torch.equal(actual.cpu(), expected.cpu()), states
