"""Small configs of diffusers' classes, written as the library saves them."""

import json
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.tiny_diffusers import candidates, shrink
from benchmarks.tiny_diffusers_table import TABLE, Small


def settings(name: str, **changes: Any) -> dict[str, Any]:
    """The config of a small model of the class: what does not change is left to the class."""
    entry = TABLE.get(name, Small())
    small = {} if entry.config.get("only") else shrink(candidates()[name])
    small |= {key: value for key, value in entry.config.items() if key != "only"}
    return {"_class_name": name, "_diffusers_version": "0.42.1", **small, **changes}


def write(directory: Path, raw: dict[str, Any], name: str = "config.json") -> str:
    """Write the config into the directory, which is made; its path."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(json.dumps(raw))
    return str(directory)


def first(value: Any) -> torch.Tensor:
    """The first tensor of an output, or of an argument."""
    while isinstance(value, list | tuple):
        value = value[0]
    return value if isinstance(value, torch.Tensor) else first(value.to_tuple())


def leaves(inputs: Any) -> list[torch.Tensor]:
    """Every tensor of nested inputs."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]


def on_cpu(inputs: Any) -> Any:
    """The inputs with ones in every tensor."""

    def ones(leaf: Any) -> Any:
        return torch.ones_like(leaf, device="cpu") if isinstance(leaf, torch.Tensor) else leaf

    return torch.utils._pytree.tree_map(ones, inputs)


def with_weights(model: torch.nn.Module) -> torch.nn.Module:
    """The model with small numbers for parameters; buffers are real already."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                values = torch.full_like(parameter, 0.01, device="cpu")
                module._parameters[name] = torch.nn.Parameter(values, requires_grad=False)
    return model


@pytest.fixture(scope="session")
def tiny() -> types.SimpleNamespace:
    """The functions above."""
    return types.SimpleNamespace(
        settings=settings, write=write, first=first, leaves=leaves, on_cpu=on_cpu, with_weights=with_weights
    )
