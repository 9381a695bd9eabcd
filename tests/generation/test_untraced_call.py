"""Models whose call no program can compute run as code of the host, over compiled calls: what torch gives."""

import copy
from typing import Any

import jax
import pytest
import torch
from transformers import PretrainedConfig, PreTrainedModel

import tpuport
from tpuport import compat
from tpuport.trace_errors import CannotTrace


class Speaker(torch.nn.Module):
    """Repeats each token as often as it predicts, as a model of speech does."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 8)
        self.durations = Durations()
        self.decoder = torch.nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor, scale: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        hidden = self.embedding(ids)
        durations, labels = self.durations(hidden)
        repeated = torch.repeat_interleave(hidden, durations, dim=0)
        sound = self.decoder(repeated) * (1 if scale is None else scale)
        # torch takes labels of 64 bits alone.
        return {"sound": sound, "loss": torch.nn.functional.cross_entropy(hidden, labels)}


class Durations(torch.nn.Module):
    """Of each token how long it lasts, and its largest feature."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = torch.nn.Linear(8, 1)

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.projection(hidden).squeeze(-1).abs().mul(4).ceil().int(), hidden.argmax(-1)


class LibrarySpeaker(Speaker, PreTrainedModel):
    # Code that is not the user's to change.
    __module__ = "transformers.models.speaker"
    config_class = PretrainedConfig

    def __init__(self, config: PretrainedConfig) -> None:
        PreTrainedModel.__init__(self, config)
        modules = Speaker()
        for name, module in modules.named_children():
            setattr(self, name, module)


class DerivedSpeaker(LibrarySpeaker):
    """A class of one's own."""


IDS = torch.tensor([3, 7, 1, 12, 5, 9])


@pytest.fixture(scope="module")
def speaker() -> LibrarySpeaker:
    torch.manual_seed(0)
    return LibrarySpeaker(PretrainedConfig()).eval()


def port(model: torch.nn.Module, **axes: int) -> Any:
    devices = jax.devices()[: max(axes.values(), default=1)]
    return tpuport.port(copy.deepcopy(model), mesh=tpuport.create_mesh(devices=devices, **axes))


@pytest.mark.parametrize("axes", [{}, {"dp": 2}])
def test_a_length_that_a_model_predicts(
    speaker: LibrarySpeaker, axes: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    model = port(speaker, **axes)
    for ids in (IDS, IDS, IDS + 1):
        output, wanted = model(ids), speaker(ids)
        assert all(map(compat.is_ported, output.values()))
        torch.testing.assert_close(tpuport.to_cpu(output), wanted)
    assert len(speaker(IDS)["sound"]) != len(speaker(IDS + 1)["sound"])
    assert caplog.text.count("LibrarySpeaker runs on the host, over compiled calls of its modules") == 1
    # What the model gave before is an argument of its call.
    again = model(compat.wrap(compat.to_jax(IDS)), scale=output["loss"])
    torch.testing.assert_close(tpuport.to_cpu(again), speaker(IDS, scale=wanted["loss"]))


def test_other_values_of_the_same_lengths_compile_nothing(speaker: LibrarySpeaker) -> None:
    model = copy.deepcopy(port(speaker))
    model(IDS)
    functions = model.forward.on_host.calls.functions.values()
    counts = [function.program.compilations for function in functions]
    assert sum(counts) == 3
    torch.testing.assert_close(tpuport.to_cpu(model(IDS.flip(0))), speaker(IDS.flip(0)))
    assert [function.program.compilations for function in functions] == counts


def test_what_is_refused(speaker: LibrarySpeaker) -> None:
    """One program, a model of one's own, which its author can change, and code that fails on the host too."""
    with pytest.raises(CannotTrace, match=r"sum of the repeats(.|\n)*call the ported model itself"):
        tpuport.compile(port(speaker))(IDS)
    with pytest.raises(CannotTrace, match="sum of the repeats") as refusal:
        port(Speaker().eval())(IDS)
    assert "the ported model itself" not in str(refusal.value)
    with pytest.raises(CannotTrace, match="sum of the repeats"):
        port(DerivedSpeaker(PretrainedConfig()).eval())(IDS)
    hooked = port(speaker)
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(CannotTrace, match="sum of the repeats"):
        hooked(IDS)
    with pytest.raises(CannotTrace, match="sum of the repeats") as failure:
        port(speaker)(IDS, scale=torch.ones(3, 5))
    assert isinstance(failure.value.__cause__, RuntimeError)
