"""Conversions, against transformers' own, for every operation it has in use."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import Interleave, Transpose, WeightConverter, WeightRenaming

from tpuport.checkpoint import load
from tpuport.checkpoint.lazy_tensors import Converted, Transposed
from tpuport.checkpoint.name_matching import has_same_contents, match_names
from tpuport.checkpoint.safetensors_files import read_header

UP = r"mlp\.up_proj\.weight"


@pytest.fixture
def with_rules(monkeypatch):
    """A function that makes transformers convert Llama's checkpoints by the given rules."""

    def use(*rules):
        import copy

        from transformers import conversion_mapping

        monkeypatch.setattr(
            conversion_mapping,
            "get_model_conversion_mapping",
            lambda model, *_, **__: copy.deepcopy(list(rules)),
        )

    return use


@pytest.mark.parametrize(
    ("operation", "kind"),
    [(Transpose(0, 1), Transposed), (Interleave(dim=0), Converted)],
    ids=["slices", "whole"],
)
def test_a_conversion_by_slices_or_whole(operation, kind, saved, with_rules, mesh_of_size, caplog):
    original, directory = saved("llama", intermediate_size=32)
    with_rules(WeightConverter("mlp.up_proj.weight", "mlp.up_proj.weight", [operation]))
    tensors = read_header(directory / "model.safetensors")
    match = match_names(original, tensors)
    assert isinstance(match.sources["model.layers.0.mlp.up_proj.weight"], kind)
    caplog.set_level("INFO", "tpuport")
    model = load(AutoModelForCausalLM, directory, mesh=mesh_of_size(tp=4))
    assert ("converted whole on the host" in caplog.text) is (kind is Converted)
    stored = original.model.layers[0].mlp.up_proj.weight
    expected = operation.convert({"a": stored.detach()}, source_patterns=["a"], target_patterns=["b"])["b"]
    weight = model.model.layers[0].mlp.up_proj.weight.jax()
    assert not weight.is_fully_replicated
    np.testing.assert_array_equal(weight, expected.numpy())


def test_names_are_changed_by_rule(saved, with_rules):
    from safetensors.torch import load_file

    original, directory = saved("llama")
    path = directory / "model.safetensors"
    renamed = {name.replace("mlp.up_proj", "ffn.w3"): value for name, value in load_file(path).items()}
    save_file(renamed, path, {"format": "pt"})
    with_rules(WeightRenaming(r"ffn\.w3", "mlp.up_proj"))
    model = load(AutoModelForCausalLM, directory)
    weight = model.model.layers[1].mlp.up_proj.weight.jax()
    np.testing.assert_array_equal(weight, original.model.layers[1].mlp.up_proj.weight.detach().numpy())


@pytest.mark.parametrize("shape", [(), (5,), (2500, 3)])
def test_has_same_contents(shape, tmp_path):
    first = torch.randn(shape)
    last = first.clone()
    last.view(-1)[-1] += 1
    values = {
        "a": first,
        "b": first.clone(),
        "c": last,
        "d": first.double(),
        "e": torch.full(shape, torch.nan),
    }
    values["f"] = values["e"].clone()
    save_file(values, tmp_path / "x.safetensors")
    stored = read_header(tmp_path / "x.safetensors")
    assert has_same_contents(stored["a"], stored["b"])
    assert has_same_contents(stored["e"], stored["f"])
    assert not has_same_contents(stored["a"], stored["c"])
    assert not has_same_contents(stored["a"], stored["d"])
