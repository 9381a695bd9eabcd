"""Values that a model of a library computes and decides by: computed before each call, a part of the program's key."""

import functools
import logging
from typing import Any

import jax
import pytest
import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import compile_compatible_method_lru_cache

import tpuport
from tpuport.attention.provenance import joined_sequences
from tpuport.compilation.decisions import decided_values
from tpuport.trace_errors import CannotTrace

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")


class Model(PreTrainedModel):
    """A model of a library, by its base class."""

    config_class = PretrainedConfig

    def __init__(self) -> None:
        super().__init__(PretrainedConfig())
        self.layer = torch.nn.Linear(4, 4)


class RealImages(Model):
    """Leaves out images of zeros [rows, images, 4], as Idefics and SmolVLM do."""

    def forward(self, pixels: torch.Tensor) -> list[torch.Tensor]:
        flat = pixels.flatten(0, 1)
        is_real = (flat == 0).sum(-1) != 4
        is_real[0] |= ~is_real.any()
        counts = is_real.view(pixels.shape[:2]).sum(1)
        return [part.sum(0) for part in self.layer(flat[is_real].contiguous()).split(counts.tolist())]


class Branches(Model):
    """Asks for other values in each branch; the values come from its weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = x * self.layer.bias
        if features.sum() > 0:
            return features[: int((features[:, 0] > 0).sum())] * 2
        kept = torch.nonzero(features[:, 1] > 0)[:, 0]
        return features[kept] if len(kept) > 1 else features + features.min().item()


class Readers(Model):
    """Reads and writes by values in each way that Python has."""

    def forward(self, x: torch.Tensor) -> Any:
        mask = x[:, 0] > 0
        others = ~mask
        y = self.layer(x)
        numbers = others.type_as(y).masked_fill(others, 5.0)
        y[mask] = y[mask] * 3
        y[others] += y[others] - 1
        ends = mask.int().cumsum(0)
        number = int(ends[-1])
        rows = torch.arange(ends[-1], device=x.device)  # type: ignore[call-overload]
        zeros = torch.zeros((2, ends[-1]), device=x.device)  # type: ignore[arg-type]
        repeated = y.repeat_interleave(ends, dim=0)
        kinds = torch.unique((x[:, 1] > 0).int() * 5)
        chosen = torch.masked_select(x, others[:, None])
        selected = x[mask]
        selected[0] = 7.0
        selected.clamp_(max=3.0)
        compared = torch.where((selected == 3.0) | (selected < x[0, 1]))
        batches = [y[start:end] for start, end in zip([0, *ends.tolist()], ends.tolist(), strict=False)]
        return (
            y,
            number,
            rows,
            zeros,
            y[: ends[1]],
            repeated,
            kinds,
            chosen,
            batches,
            (~mask).sum().item(),
            numbers,
            selected,
            compared,
            ~(x[mask] >= 0),
            1 - x[mask] ** 2,
        )


class Buffers(Model):
    """Has its sizes in buffers, as the codecs Encodec and Mimi do."""

    stride: torch.Tensor
    weight: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stride", torch.tensor(3), persistent=False)
        self.register_buffer("weight", torch.tensor([0.0, 2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.ceil(torch.tensor(len(x)) / self.stride).to(torch.int64)
        padded = torch.nn.functional.pad(x, (0, 0, 0, steps * self.stride - len(x)))  # type: ignore[arg-type]
        for weight in self.weight:
            if weight > 0:
                padded = self.layer(padded) * weight
        return padded


class Remembers(Model):
    """Has coordinates in a cache of transformers' own, as vision encoders do."""

    @compile_compatible_method_lru_cache(maxsize=4)
    def coordinates(self, length: int, device: torch.device) -> torch.Tensor:
        return torch.arange(length, device=device, dtype=torch.float32) / length

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = x[x[:, 0] + self.coordinates(4, x.device)[0] > 0]
        return self.layer(chosen) + self.coordinates(4, x.device)


class RemembersByLength(Remembers):
    """Has them in one of Python's caches, as OmDet-Turbo does its anchors."""

    @functools.lru_cache(maxsize=4)  # noqa: B019 - as libraries write it
    def coordinates(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, length: int, device: torch.device
    ) -> torch.Tensor:
        return torch.arange(length, device=device, dtype=torch.float32) / length


class Selects(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x[x[:, 0] > 0])


class WritesToWhatDecides(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x[:, 0] > 0
        chosen = x[mask].sum(0)
        mask.view(-1)[0] = True
        return self.layer(chosen) + mask.sum()


class DecidesByProducts(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[self.layer(x)[:, 0] > 0]


class Draws(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[torch.rand_like(x[:, 0]) > 0.5]


class AddsNoise(Model):
    """Draws before it decides, as ConsistencyDecoderVAE does: not by what it has drawn."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.rand_like(x)
        chosen = x[:, 0] > 0
        return self.layer(x[chosen]), x[chosen] + noise[chosen]


class CountsPositions(Model):
    """Takes a size from positions that it has made itself, as VJEPA 2 does: it follows from shapes alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(len(x), device=x.device)
        return self.layer(x).repeat(2, positions.max() + 1)  # type: ignore[arg-type]


class MovesToPositions(Model):
    """Moves a mask to where its positions are, as transformers' masks do; nothing can decide by it."""

    def forward(self, x: torch.Tensor, sizes: torch.Tensor) -> Any:
        parts = x.split(sizes.tolist())
        positions = torch.arange(len(x), device=x.device)
        known = positions.new_ones((), dtype=torch.bool)
        is_large = self.layer(x) > 0
        mask = known & is_large[:, 0].to(known.device)
        return parts[1], mask, is_large.to(positions), is_large.to(device=known.device, dtype=torch.int32)


def ported(model_class: type[Model], **mesh: Any) -> tuple[Model, Model]:
    """(a model of torch, the same ported)."""
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(model_class().eval())
    devices = jax.devices()[: max(1, *mesh.values())] if mesh else jax.devices()[:1]
    return models[0], tpuport.port(models[1], mesh=tpuport.create_mesh(devices=devices, **mesh))


def assert_agree(compiled: Any, model: Model, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        expected = model(*(tensor.clone() for tensor in inputs))
    # The device has integers of 32 bits.
    torch.testing.assert_close(tpuport.to_cpu(compiled(*inputs)), expected, check_dtype=False)


def images(*real: int, seed: int = 0) -> torch.Tensor:
    """Images of two rows; those with other numbers are zeros."""
    pixels = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(seed))
    pixels.view(6, 4)[[number for number in range(6) if number not in real]] = 0
    return pixels


@pytest.mark.parametrize(
    "mesh", [{}, pytest.param({"dp": 2}, marks=pytest.mark.slow)], ids=["one device", "mesh"]
)
def test_other_values_compile_and_the_same_do_not(mesh: dict[str, int]) -> None:
    model, on_device = ported(RealImages, **mesh)
    compiled = tpuport.compile(on_device)
    counts = []
    for pixels in (images(0, 1, 3), images(0, 1, 3, seed=1), images(2, 5), images(0, 1, 3), images()):
        assert_agree(compiled, model, pixels)
        counts.append(compiled.program.compilations)
    assert counts == [1, 1, 2, 2, 3]
    assert_agree(on_device, model, images(1, 4))


def test_each_branch_asks_for_its_own_values() -> None:
    model, on_device = ported(Branches)
    compiled = tpuport.compile(on_device)
    for seed in (0, 1, 2, 3, 0, 4, 5, 6, 1):
        assert_agree(compiled, model, torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)))


def test_every_way_to_read_a_value() -> None:
    model, on_device = ported(Readers)
    compiled = tpuport.compile(on_device)
    for seed in (0, 1):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
        assert_agree(compiled, model, x)


def test_sizes_in_buffers() -> None:
    model, on_device = ported(Buffers)
    compiled = tpuport.compile(on_device)
    assert_agree(compiled, model, torch.randn(7, 4))
    assert_agree(compiled, model, torch.randn(7, 4))
    assert compiled.program.compilations == 1
    for each in (model, on_device):
        assert isinstance(each, Buffers)
        each.weight[0] = 1.5
    assert_agree(compiled, model, torch.randn(7, 4))


@pytest.mark.parametrize("model_class", [Remembers, RemembersByLength])
def test_what_a_trace_remembers_is_computed_anew(model_class: type[Model]) -> None:
    model, on_device = ported(model_class)
    compiled = tpuport.compile(on_device)
    for rows in (3, 5):
        assert_agree(compiled, model, torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)))


def test_values_are_read_once_from_the_same_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Any] = []
    read = decided_values.HostInput.of
    monkeypatch.setattr(decided_values.HostInput, "of", lambda value: reads.append(value) or read(value))

    def count_reads(x: torch.Tensor) -> int:
        reads.clear()
        compiled(x)
        return len(reads)

    model, on_device = ported(RealImages)
    compiled = tpuport.compile(on_device)
    pixels, others = (tpuport.compat.to_device(images(*real)) for real in ((0, 1, 3), (2, 5)))
    assert count_reads(pixels) > 0
    assert [count_reads(each) > 0 for each in (pixels, others, others, pixels)] == [False, True, False, True]
    with torch.no_grad():
        pixels[1, 2] = 1.0
        on_host = tpuport.to_cpu(pixels)
    assert_agree(compiled, model, on_host)
    assert count_reads(pixels) > 0

    # Sizes in buffers follow from nothing else, whatever the inputs are.
    _, on_device = ported(Buffers)
    compiled = tpuport.compile(on_device)
    assert count_reads(torch.randn(7, 4)) > 0
    assert count_reads(torch.randn(7, 4)) == 0


def test_a_warning_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    _, on_device = ported(RealImages)
    compiled = tpuport.compile(on_device)
    with caplog.at_level(logging.WARNING, "tpuport"):
        for number in range(5):
            compiled(images(number))
    first, second = (record.getMessage() for record in caplog.records)
    assert "RealImages decides by values that it computes" in first
    assert "what it computes and decides by keeps changing" in second
    assert "decide shapes" in second


def test_what_a_mask_selects_is_not_cut_into_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As HieraForPreTraining selects among thousands of rows, which took minutes to trace."""
    cuts: list[Any] = []
    as_part = joined_sequences.as_part
    monkeypatch.setattr(joined_sequences, "as_part", lambda array: cuts.append(array) or as_part(array))
    model, on_device = ported(Selects)
    assert_agree(tpuport.compile(on_device), model, torch.randn(100, 4))
    assert 0 < len(cuts) < 50


def test_sizes_that_follow_from_shapes(caplog: pytest.LogCaptureFixture) -> None:
    model, on_device = ported(CountsPositions)
    compiled = tpuport.compile(on_device)
    for rows in (3, 5, 3):
        assert_agree(compiled, model, torch.randn(rows, 4))
    assert compiled.program.compilations == 2
    assert not [record for record in caplog.records if "decides" in record.getMessage()]


def test_what_is_drawn_and_does_not_decide() -> None:
    model, on_device = ported(AddsNoise)
    compiled = tpuport.compile(on_device)
    noises = []
    for seed in (0, 1, 1):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
        features, noisy = tpuport.to_cpu(compiled(x))
        with torch.no_grad():
            expected, _ = model(x)
        torch.testing.assert_close(features, expected)
        noises.append(noisy - x[x[:, 0] > 0])
        assert noises[-1].min() > -1e-6
        assert noises[-1].max() < 1
    assert compiled.program.compilations == 2
    assert not torch.equal(noises[1], noises[2])


def test_what_moves_to_known_positions_stays_in_the_program() -> None:
    model, on_device = ported(MovesToPositions)
    assert_agree(tpuport.compile(on_device), model, torch.randn(6, 4), torch.tensor([2, 4]))


@pytest.mark.parametrize("model_class", [WritesToWhatDecides, Draws, DecidesByProducts])
def test_the_first_error_remains_where_values_cannot_decide(model_class: type[Model]) -> None:
    _, on_device = ported(model_class)
    with pytest.raises(CannotTrace, match="true elements"):
        tpuport.compile(on_device)(torch.randn(5, 4))


def test_the_first_error_remains_where_too_many_values_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decided_values, "_MOST_STEPS", 2)
    _, on_device = ported(Branches)
    with pytest.raises(CannotTrace, match="asks for the value of a tensor"):
        tpuport.compile(on_device)(torch.randn(3, 4))
