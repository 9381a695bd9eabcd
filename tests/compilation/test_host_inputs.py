"""Inputs whose values decide shapes: named by the user, or found when the code asks for their values."""

import logging
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from transformers import PretrainedConfig, PreTrainedModel

import tpuport
from tests.compilation import value_functions
from tpuport.errors import PortError
from tpuport.trace_errors import CannotTrace

NAMES = ["grids"]


class Images(PreTrainedModel):
    """Cuts the patches [N, 4] of all images by their grids, as vision encoders of transformers do."""

    config_class = PretrainedConfig

    def __init__(self) -> None:
        super().__init__(PretrainedConfig())
        self.layer = torch.nn.Linear(4, 8)

    def forward(
        self, patches: torch.Tensor, grids: torch.Tensor, kinds: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        features = self.layer(patches)
        if kinds is not None:
            features = features + kinds[:, None]
        sizes = grids.prod(-1).tolist()
        parts = zip(features.split(sizes), grids.tolist(), strict=True)
        return [part.view(height, width, 8).mean(0) for part, (height, width) in parts]


PATCHES = torch.randn(14, 4, generator=torch.Generator().manual_seed(0))
GRIDS = torch.tensor([[2, 4], [3, 2]])
OTHERS = torch.tensor([[3, 2], [4, 2]])
KINDS = torch.arange(14)


@pytest.fixture(scope="module")
def model() -> Images:
    torch.manual_seed(0)
    return Images().eval()


@pytest.fixture(scope="module")
def ported() -> Images:
    torch.manual_seed(0)
    return tpuport.port(Images().eval(), mesh=tpuport.create_mesh(devices=jax.devices()[:1]))


def assert_same(mine: Any, theirs: Any) -> None:
    for ours, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(tpuport.to_cpu(ours), expected.detach())


@pytest.mark.parametrize("static", ["grids", ["gri*"], ()], ids=["name", "pattern", "found"])
def test_values_are_a_part_of_the_program(static: Any, model: Images, ported: Images) -> None:
    compiled = tpuport.compile(ported, static=static)
    counts = []
    for grids in (GRIDS, GRIDS.clone(), OTHERS, GRIDS, GRIDS.to("jax"), GRIDS.numpy(), jnp.asarray(OTHERS)):
        result = compiled(PATCHES, grids)
        assert_same(result, model(PATCHES, torch.tensor(grids.tolist())))
        counts.append(compiled.program.compilations)
    assert counts[:4] == [1, 1, 2, 2]
    # On the device, and in an array of NumPy, integers may be others.
    assert counts[-1] <= 4


def test_what_is_found_is_named_once_and_is_no_more_than_necessary(
    ported: Images, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = tpuport.compile(ported)
    with caplog.at_level(logging.WARNING, "tpuport"):
        compiled(PATCHES, GRIDS, KINDS)
        compiled(PATCHES, OTHERS, KINDS)
    [message] = [record.getMessage() for record in caplog.records]
    assert "Images decides by the values of grids" in message
    assert "static=['grids']" in message
    count = compiled.program.compilations
    compiled(PATCHES, GRIDS, KINDS + 1)
    assert compiled.program.compilations == count


def test_the_ports_own_call_finds_them(model: Images, ported: Images) -> None:
    assert_same(ported(PATCHES, GRIDS), model(PATCHES, GRIDS))


def test_a_recompilation_names_the_values(ported: Images, caplog: pytest.LogCaptureFixture) -> None:
    compiled = tpuport.compile(ported, static="grids")
    with caplog.at_level(logging.WARNING, "tpuport"):
        for height in range(1, 5):
            compiled(PATCHES[: height * 2], torch.tensor([[height, 2]]))
    assert "grids keeps changing" not in caplog.text or "decide shapes" in caplog.text
    assert "traced=" not in caplog.text


def test_names_that_fit_nothing_are_refused(ported: Images) -> None:
    with pytest.raises(PortError, match="no argument of this call is called grid\n"):
        tpuport.compile(ported, static="grid")(PATCHES, GRIDS)
    # An input that this call leaves out may come in another one.
    assert len(tpuport.compile(ported, static=["grids", "kinds"])(PATCHES, GRIDS)) == 2


def test_masks_select_and_are_returned(agree: Any) -> None:
    def select(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, Any, torch.Tensor]:
        chosen = x[mask]
        counts = mask.sum(1)
        return torch.cat(chosen.split(counts.tolist())) * 2, {"mask": ~mask}, counts.to(x.device, x.dtype)

    x = torch.randn(2, 3, 4)
    mask = torch.tensor([[True, False, True], [False, False, True]])
    agree(select, x, mask, static="mask")


def test_own_functions_are_told_what_to_name(agree: Any) -> None:
    """Their code may be meant for any values."""
    x, ids = torch.randn(2, 3), torch.tensor([[1, 2, 1], [1, 1, 2]])
    compiled = tpuport.compile(value_functions.tokens_decide)
    with pytest.raises(CannotTrace, match=r"static=\['input_ids'\]"):
        compiled(x, ids)
    agree(value_functions.tokens_decide, x, ids, static="input_ids")
    with pytest.raises(CannotTrace, match=r"static=\['types'\]"):
        tpuport.compile(value_functions.types_decide)(x, ids, ids % 2)
    agree(value_functions.types_decide, x, ids, ids % 2, static="types")


def test_an_error_that_remains_is_the_first_one() -> None:
    with pytest.raises(CannotTrace, match="a Python number needs") as caught:
        tpuport.compile(value_functions.sizes_and_sums_decide)(torch.ones(3), torch.tensor([2]))
    source = caught.value.failure.source
    assert source is not None
    assert "int(sizes[0])" in source.code
    assert "static=" not in str(caught.value)


def test_writing_in_place_is_refused() -> None:
    def double(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        sizes *= 2
        return x[: int(sizes[0])]

    with pytest.raises(PortError, match="writes in place to sizes"):
        tpuport.compile(double, static="sizes")(torch.ones(3), torch.tensor([1]))


def test_draws_differ_from_call_to_call() -> None:
    def noisy(x: torch.Tensor, sizes: torch.Tensor) -> list[torch.Tensor]:
        rows = x[: int(sizes[0])]
        like = torch.rand_like(torch.zeros(int(sizes[0])))
        chosen = torch.bernoulli(sizes.new_zeros(64).float() + 0.5)
        return [torch.nn.functional.dropout(rows, 0.5), rows + torch.randn(rows.shape), like, chosen]

    compiled = tpuport.compile(noisy, static="sizes")
    torch.manual_seed(0)
    first, second = (compiled(torch.ones(64), torch.tensor([48])) for _ in range(2))
    assert compiled.program.compilations == 1
    assert not any(map(torch.equal, tpuport.to_cpu(first), tpuport.to_cpu(second)))
    torch.manual_seed(0)
    assert all(
        map(torch.equal, tpuport.to_cpu(first), tpuport.to_cpu(compiled(torch.ones(64), torch.tensor([48]))))
    )


def test_nested_functions_and_checked_indices(agree: Any) -> None:
    @tpuport.compile
    def inner(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.sum(0, keepdim=True) for part in x.split(sizes.tolist())])

    def outer(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        return inner(x, sizes * 1) + 1 if isinstance(x, torch.Tensor) else x

    x, sizes = torch.randn(5, 2), torch.tensor([2, 3])
    expected = torch.stack([x[:2].sum(0), x[2:].sum(0)]) + 1
    for check in (False, True):
        torch.testing.assert_close(
            tpuport.to_cpu(tpuport.compile(outer, static="sizes", check_indices=check)(x, sizes)), expected
        )


def test_donated_state_beside_them(agree: Any) -> None:
    class State:
        def __init__(self) -> None:
            self.rows = torch.zeros(6, 2)
            self.sizes = torch.tensor([2, 4])

    def step(x: torch.Tensor, state: State) -> torch.Tensor:
        for number, part in enumerate(state.rows.split(state.sizes.tolist())):
            part += x * number
        return state.rows.sum()

    agree(step, torch.ones(2), State(), static="state.sizes")


def test_on_a_mesh(model: Images) -> None:
    torch.manual_seed(0)
    mesh = tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4])
    on_mesh = tpuport.port(Images().eval(), mesh=mesh)
    for grids in (GRIDS, OTHERS):
        assert_same(on_mesh(PATCHES, grids), model(PATCHES, grids))


def test_dtypes_and_empty_inputs_stay(agree: Any) -> None:
    def describe(x: torch.Tensor, values: torch.Tensor) -> Any:
        return x[: int(values.sum())], str(values.dtype), tuple(values.shape)

    for values in (
        torch.tensor([True, False]), torch.tensor([1], dtype=torch.int16), torch.tensor(2), torch.zeros(0, 3).long(),
        torch.tensor([0.5, 1.5], dtype=torch.bfloat16),
    ):  # fmt: skip
        agree(describe, torch.ones(4), values, static="values")
