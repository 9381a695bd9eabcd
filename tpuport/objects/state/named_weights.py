"""The weights of modules, by the names that torch gives them."""

from typing import Any, Final

import torch

# Dictionaries of a module whose values are weights: which names there are is in the key
# of a program, the values are arguments.
TENSOR_DICTS: Final = ("_parameters", "_buffers")


class NamedWeights:
    """Finds the weights of modules whose structure stays as it is."""

    def __init__(self) -> None:
        self._slots: dict[torch.nn.Module, list[tuple[str, dict[str, Any], str]]] = {}

    def of(self, module: torch.nn.Module) -> dict[str, torch.Tensor]:
        """The parameters and buffers of a module by name, as torch lists them."""
        slots = self._slots_of(module)
        tensors = {full_name: owner[name] for full_name, owner, name in slots}
        # A weight that has several names has the first of them.
        first_names = dict(
            zip(map(id, reversed(tensors.values())), reversed(tensors), strict=True)
        )
        return {
            name: tensor for name, tensor in tensors.items()
            if tensor is not None and first_names[id(tensor)] == name
        }  # fmt: skip

    def places(self, module: torch.nn.Module) -> dict[str, tuple[dict[str, Any], str]]:
        """By the name of each that a module may have, a dictionary and the name
        there.
        """
        return {name: (owner, key) for name, owner, key in self._slots_of(module)}

    def _slots_of(
        self, module: torch.nn.Module
    ) -> list[tuple[str, dict[str, Any], str]]:
        if module not in self._slots:
            self._slots[module] = [
                (f"{prefix}.{name}" if prefix else name, owner, name)
                for kind in TENSOR_DICTS
                for prefix, part in module.named_modules()
                for owner in (vars(part)[kind],)
                for name in owner
            ]
        return self._slots[module]
