"""One's own code in another dtype, against what torch's `to` makes of the same model and inputs."""

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from transformers import DynamicCache

from tpuport.topology.generation_tasks import Decode
from tpuport.topology.targets.target import Target
from tpuport.topology.targets.user_code import convert_dtype


class Own(torch.nn.Module):
    """Tied weights, and buffers of every kind, one of them not in the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(8, 4)
        self.head = torch.nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        self.conv = torch.nn.Conv2d(3, 4, 2)
        self.register_buffer("mean", torch.tensor([0.1, 0.2]))
        self.register_buffer("steps", torch.arange(3))
        self.register_buffer("cache", torch.zeros(2, 4), persistent=False)


def tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_model_is_what_torch_makes_of_it(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    expected = tensors(Own().to(dtype))
    torch.manual_seed(0)
    model = convert_dtype(Target("own", Own, {}), dtype).build()
    assert isinstance(model, Own)
    found = tensors(model)
    assert {name: one.dtype for name, one in found.items()} == {
        name: one.dtype for name, one in expected.items()
    }
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)
    assert model.head.weight is model.embed.weight


def test_complex_numbers_keep_both_parts() -> None:
    def build() -> torch.nn.Module:
        model = torch.nn.Linear(2, 2, device="meta")
        model.register_buffer("turns", torch.tensor([1j]))
        return model

    found = tensors(convert_dtype(Target("own", build, {}), torch.bfloat16).build())
    assert (found["weight"].dtype, found["turns"].dtype) == (torch.bfloat16, torch.complex64)


def test_floating_inputs_are_converted_wherever_they_are_and_named() -> None:
    cache = DynamicCache()
    cache.update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), 0)
    place = NamedSharding(Mesh(jax.devices()[:1], ("dp",)), PartitionSpec("dp"))
    inputs = {
        "images": torch.full((2, 3), 0.1, dtype=torch.float64),
        "ids": torch.arange(3),
        "scale": 0.5,
        "half": torch.zeros(2, dtype=torch.bfloat16),
        "nested": {"z": [torch.zeros(1), None], "a": (torch.zeros(1, device="meta"),)},
        "described": jax.ShapeDtypeStruct((4, 2), jnp.float32, sharding=place),
        "whole": jax.ShapeDtypeStruct((4,), jnp.int32),
        "past": cache,
    }
    target = convert_dtype(Target("own", Own, inputs, notes=("before",)), torch.bfloat16)
    made = target.inputs
    assert isinstance(made, dict)
    assert list(made) == list(inputs)
    torch.testing.assert_close(made["images"], inputs["images"].to(torch.bfloat16), rtol=0, atol=0)
    assert made["nested"]["z"][0].dtype == made["nested"]["a"][0].dtype == torch.bfloat16
    assert made["nested"]["z"][1] is None
    assert made["past"].layers[0].keys.dtype == torch.bfloat16
    described = made["described"]
    assert (described.shape, described.dtype, described.sharding) == ((4, 2), jnp.bfloat16, place)
    assert [made[name] for name in ("ids", "scale", "half", "whole")] == [
        inputs[name] for name in ("ids", "scale", "half", "whole")
    ]
    assert target.notes == (
        "before",
        "inputs that were converted to bfloat16: images, nested, described, past",
    )
    assert inputs["images"].dtype == torch.float64


def test_a_task_has_no_inputs_to_convert() -> None:
    target = convert_dtype(Target("own", Own, Decode(1, 32)), torch.bfloat16)
    assert (target.inputs, target.notes, target.dtype) == (Decode(1, 32), (), None)
    assert target.build().mean.dtype == torch.bfloat16
