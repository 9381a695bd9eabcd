"""Methods and parts of a ported model take tensors of the host, as its own call does."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import tpuport
from tpuport import PortError

IDS, MASK = torch.tensor([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]]), torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.mix = nn.Conv1d(4, 4, 3, padding=1)
        self.norm = nn.LayerNorm(4)

    def forward(self, ids: torch.Tensor, mask: Any = None, extra: Any = None) -> torch.Tensor:
        hidden = self.mix(self.embed(ids).transpose(1, 2)).transpose(1, 2)
        if mask is not None:
            hidden = hidden + (1 - mask.float())[..., None] * -10
        for part in (extra or {}).values():
            hidden = torch.cat([hidden, part.to(hidden.device)], -1)[..., :4]
        return self.norm(hidden)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(ids))

    def pooled(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.encoder(ids, mask=mask, extra={"a": torch.ones(2, 5, 1)}).mean(1)


def pair() -> tuple[Any, Any]:
    torch.manual_seed(0)
    reference = Model().eval().requires_grad_(False)
    return reference, tpuport.port(copy.deepcopy(reference))


def test_parts_and_methods_take_tensors_of_the_host() -> None:
    reference, model = pair()
    for ported in (model, tpuport.port(model, mesh=tpuport.create_mesh(dp=4, tp=2))):
        results = [ported.encoder(IDS), ported.pooled(IDS, MASK), ported.head(torch.ones(4))]
        expected = [reference.encoder(IDS), reference.pooled(IDS, MASK), reference.head(torch.ones(4))]
        for mine, theirs in zip(results, expected, strict=True):
            torch.testing.assert_close(tpuport.to_cpu(mine), theirs)


def test_outside_of_a_model_devices_do_not_mix() -> None:
    _, model = pair()
    with pytest.raises(PortError, match="one tensor on the device and one on the host"):
        model.encoder(IDS) + torch.ones(2, 5, 4)


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(self.weight)


def test_a_write_to_the_callers_tensor_is_refused() -> None:
    model = nn.Sequential(Writes())
    part, x = tpuport.port(model)[0], torch.zeros(3)
    with pytest.raises(PortError, match="on the host"):
        part(x)
    assert x.tolist() == [0, 0, 0]


def test_a_model_that_peft_has_merged_is_called() -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = get_peft_model(Model(), LoraConfig(r=2, target_modules=["head"], init_lora_weights=False)).eval()
    expected = copy.deepcopy(model).merge_and_unload()(IDS)
    merged = tpuport.port(model).merge_and_unload()
    torch.testing.assert_close(tpuport.to_cpu(merged(IDS)), expected.detach())
