"""What transformers caches for all models of a class, in programs of several."""

import copy

import pytest
import torch
from transformers import EsmConfig, EsmModel
from transformers.models.esm.openfold_utils import rigid_utils
from transformers.models.maskformer.modeling_maskformer import MaskFormerSinePositionEmbedding

import tpuport
from tpuport.patches.cached_methods import without_caches


class Positions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.table = MaskFormerSinePositionEmbedding(num_position_features=4, normalize=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.table(x.shape, x.device, x.dtype)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
def test_each_program_computes_its_own() -> None:
    x = torch.randn(2, 8, 3, 5)
    model = Positions()
    expected = model(x)
    for ported in (tpuport.port(copy.deepcopy(model)), tpuport.port(copy.deepcopy(model))):
        torch.testing.assert_close(ported(x).cpu(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


def test_functions_beside_a_model_compute_anew() -> None:
    config = EsmConfig(
        vocab_size=8,
        pad_token_id=1,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    identity = rigid_utils.identity_quats
    identity.cache_clear()
    with without_caches([EsmModel(config)]):
        assert torch.equal(rigid_utils.Rotation.identity((2,)).get_quats(), rigid_utils.identity_quats((2,)))
    assert rigid_utils.identity_quats is identity
    assert identity.cache_info().currsize == 0
