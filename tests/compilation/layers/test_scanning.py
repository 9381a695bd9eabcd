"""Networks of blocks, scanned and not: equal results, and a reason wherever there is no scan."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tpuport.compilation import layers

_spec = importlib.util.spec_from_file_location("layer_networks", Path(__file__).parent / "networks.py")
assert _spec is not None
assert _spec.loader is not None
networks = importlib.util.module_from_spec(_spec)
import sys  # noqa: E402

sys.modules["layer_networks"] = networks
_spec.loader.exec_module(networks)
Network, Plan, WIDTH, assert_equal, both = (
    networks.Network, networks.Plan, networks.WIDTH, networks.assert_equal, networks.both,
)  # fmt: skip
X = torch.linspace(-1, 1, 3 * WIDTH).reshape(3, WIDTH)


def scanned_counts(plan) -> tuple[list[int], tuple]:
    torch.manual_seed(1)
    plain, looped, draft = both(Network(plan).eval(), X)
    assert_equal(plain, looped)
    assert all(blocks.name == "blocks" for blocks in draft.scanned)
    return [blocks.count for blocks in draft.scanned], draft.declined


@pytest.mark.parametrize(
    ("plan", "counts"),
    [
        (Plan(), [3]),
        pytest.param(Plan(residual=False, bias=False), [3], marks=pytest.mark.slow),
        # With two streams it has a context too.
        pytest.param(Plan(context=True), [3], marks=pytest.mark.slow),
        (Plan(two_streams=True, context=True), [3]),
        pytest.param(Plan(collected="sum"), [3], marks=pytest.mark.slow),
        (Plan(collected="stack"), [3]),
        pytest.param(Plan(collected="list"), [3], marks=pytest.mark.slow),
        pytest.param(Plan(scales="same"), [3], marks=pytest.mark.slow),
        (Plan(scales="each"), [3]),  # numbers that differ are operands, and become an array of three
        pytest.param(Plan(buffer=True), [3], marks=pytest.mark.slow),
        pytest.param(Plan(passes=2), [6], marks=pytest.mark.slow),
        # As with three kinds of blocks.
        pytest.param(Plan(depth=6, turns=("tanh", "sin")), [6], marks=pytest.mark.slow),
        (Plan(depth=7, turns=("tanh", "sin", "cos")), [6]),
        pytest.param(Plan(depth=4, wide_last=True), [3], marks=pytest.mark.slow),
        # What stands between two blocks goes with the later one, so the first differs.
        pytest.param(Plan(between=True, depth=4), [3], marks=pytest.mark.slow),
        (Plan(between=True, first_input=True, depth=4), [3]),
    ],
    ids=str,
)
def test_blocks_are_in_one_loop(plan, counts) -> None:
    scanned, declined = scanned_counts(plan)
    assert scanned == counts
    assert sum(blocks.count for blocks in declined) == plan.depth * plan.passes - sum(counts)


@pytest.mark.slow  # the plans of `test_blocks_are_in_one_loop`
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    plan=st.builds(
        Plan,
        depth=st.integers(1, 6),
        turns=st.lists(st.sampled_from(["tanh", "sin"]), min_size=1, max_size=3).map(tuple),
        residual=st.booleans(), context=st.booleans(), two_streams=st.booleans(),
        collected=st.sampled_from(["", "sum", "stack", "list"]), between=st.booleans(),
        first_input=st.booleans(), scales=st.sampled_from(["", "same", "each"]), wide_last=st.booleans(),
        bias=st.booleans(), passes=st.integers(1, 2), buffer=st.booleans(),
    )
)  # fmt: skip
def test_any_network_gives_the_same_scanned(plan) -> None:
    counts, declined = scanned_counts(plan)
    assert sum(counts) + sum(blocks.count for blocks in declined) in (0, plan.depth * plan.passes)


class Unet(torch.nn.Module):
    """Each block of the way back takes what one on the way there gave."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.blocks[0](x)
        second = self.blocks[1](first)
        return self.blocks[3](self.blocks[2](second) + first)


class Power(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) ** self.number


class Powers(torch.nn.Module):
    """A Python constant that differs from block to block, inside of the operation."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Power(number) for number in (2, 3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_blocks_that_differ_are_declined_with_the_line() -> None:
    plain, looped, draft = both(Powers().eval(), X)
    assert_equal(plain, looped)
    assert draft.scanned == ()
    [declined] = draft.declined
    assert (declined.name, declined.count) == ("blocks", 3)
    assert "integer_pow with y=2 in one, 3 in the other" in declined.reason
    assert "test_scanning.py, line" in declined.reason


def test_connections_past_a_block_are_declined() -> None:
    plain, looped, draft = both(Unet().eval(), X)
    assert_equal(plain, looped)
    assert [blocks.count for blocks in draft.scanned] in ([], [2], [3])
    assert sum(blocks.count for blocks in draft.declined) >= 1
    assert draft.declined[0].reason


class Alternating(torch.nn.Module):
    """Two lists in turns, and a third of another class beside them that is a stack of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.two = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(4))
        mixed = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH)] * 0
        for _ in range(3):
            mixed += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH)]
        self.mixed = torch.nn.Sequential(*mixed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for one, two in zip(self.one, self.two, strict=True):
            x = two(one(x)) + x
        return self.mixed(x)


def test_lists_in_turns_and_classes_in_turns() -> None:
    model = Alternating().eval()
    plain, looped, draft = both(model, X)
    assert_equal(plain, looped)
    assert layers.ScannedBlocks("mixed", 6) in draft.scanned
    assert (
        layers.ScannedBlocks("one", 3) in draft.scanned
    )  # what stands between goes with the later of two blocks
    names = {stack.name("weight") for stack in layers.find_stacks(model, networks.collect_weights(model))}
    assert names == {"one.*.weight", "two.*.weight", "mixed.[0,2,4].weight", "mixed.[1,3,5].weight"}


def test_blocks_inside_of_loops_and_branches_are_found() -> None:
    model = Network(Plan()).eval()
    networks.tpuport.port(model)
    weights = networks.collect_weights(model)

    def once(weights, x):
        with networks.use_weights([model], [weights]):
            return networks.compat.as_jax(model(networks.compat.as_torch(x)))

    def loop(weights, x):
        _, x = jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, once(weights, s[1])), (0, x))
        return jax.lax.cond(x.sum() > 1e6, lambda x: x, lambda x: jax.jit(once)(weights, x), x)

    x = jnp.asarray(X.numpy())
    stacked = layers.stack_weights(weights, layers.find_stacks(model, weights))
    results, draft = networks.looped(loop, stacked, x)
    assert_equal(jax.jit(loop)(weights, x), results)
    assert draft.scanned == (layers.ScannedBlocks("blocks", 3),) * 2
    assert str(draft.captured.program).count("length=3") == 2
    lowered = jax.jit(draft.captured.function).lower(stacked, x)
    assert "tpuport_block" not in lowered.as_text(debug_info=True)


def test_side_effects_stay_in_their_order() -> None:
    seen: list[float] = []

    class Told(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.linear(x)
            jax.debug.callback(
                lambda total: seen.append(float(total)), networks.compat.as_jax(x).sum(), ordered=True
            )
            return x

    model = torch.nn.Sequential(Told(), Told(), Told()).eval()

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks(x)

    plain, looped, draft = both(Whole(), X)
    jax.effects_barrier()
    assert_equal(plain, looped)
    assert "side effects" in draft.declined[0].reason
    assert seen[:3] == pytest.approx(seen[3:])


def test_without_stacked_weights_nothing_is_scanned() -> None:
    model = Network(Plan()).eval()
    networks.tpuport.port(model)
    weights = networks.collect_weights(model)

    def once(weights, x):
        with networks.use_weights([model], [weights]):
            return networks.compat.as_jax(model(networks.compat.as_torch(x)))

    x = jnp.asarray(X.numpy())
    results, draft = networks.looped(once, weights, x)
    assert_equal(once(weights, x), results)
    assert not draft.is_mostly_looped
    assert (draft.scanned, draft.declined) == ((), ())
