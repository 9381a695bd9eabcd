"""Where each array of a call is among the inputs of its program, which are flat."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from tpuport.compilation.shared_tensors import Slot

_ARRAY = jax.tree.structure(0)


class ProgramInputs(NamedTuple):
    """The order of a program's inputs: weights, tensors, caches.

    Attributes:
        weights: the names of each model's.
        structures: what each of these consists of: quantized weights, and rotary
            tables, of several arrays.
        tensors: whether each is an input; one that is a weight is none.
        caches: the number of arrays in each.
    """

    weights: tuple[tuple[str, ...], ...]
    structures: tuple[Any, ...]
    tensors: tuple[bool, ...]
    caches: tuple[int, ...]

    @classmethod
    def of(
        cls,
        weights: Sequence[dict[str, Any]],
        tensors: Sequence[Any],
        caches: Sequence[Sequence[Any]],
    ) -> "ProgramInputs":
        """The order of these."""
        structures = [
            jax.tree.structure(weight)
            for of_model in weights
            for weight in of_model.values()
        ]
        return cls(
            tuple(map(tuple, weights)),
            tuple(structures),
            tuple(tensor is not None for tensor in tensors),
            tuple(map(len, caches)),
        )

    def flatten(
        self,
        weights: Sequence[dict[str, Any]],
        tensors: Sequence[Any],
        caches: Sequence[Sequence[Any]],
    ) -> list[Any]:
        """The inputs."""
        arrays: list[Any] = []
        for of_model in weights:
            arrays += of_model.values()
        if any(structure != _ARRAY for structure in self.structures):
            arrays = jax.tree.leaves(arrays)
        arrays += itertools.compress(tensors, self.tensors)
        for of_cache in caches:
            arrays += of_cache
        return arrays

    def unflatten(
        self, arrays: Sequence[Any]
    ) -> tuple[list[dict[str, Any]], list[Any], list[list[Any]]]:
        """The weights, tensors and caches."""
        rest = iter(arrays)
        structures = iter(self.structures)
        weights: list[dict[str, Any]] = [
            {
                name: structure.unflatten(
                    list(itertools.islice(rest, structure.num_leaves))
                )
                for name, structure in zip(names, structures, strict=False)
            }
            for names in self.weights
        ]
        tensors = [next(rest) if is_input else None for is_input in self.tensors]
        caches = [list(itertools.islice(rest, size)) for size in self.caches]
        return weights, tensors, caches

    def labels(self, tensors: Sequence[Any]) -> list[Any]:
        """What each input is: ("weight", (number of the model, name, number of the
        array)), ("cache", (number, number of the array)), or what is said of the
        tensor.
        """
        slots = [
            (model, name) for model, names in enumerate(self.weights) for name in names
        ]
        labels: list[Any] = [
            ("weight", (*slot, index))
            for slot, structure in zip(slots, self.structures, strict=True)
            for index in range(structure.num_leaves)
        ]
        labels += itertools.compress(tensors, self.tensors)
        labels += [
            ("cache", (number, index))
            for number, size in enumerate(self.caches)
            for index in range(size)
        ]
        return labels

    def places(self) -> dict[Slot, int]:
        """The number of the input of each tensor, and of each weight of one array."""
        labels = self.labels(range(len(self.tensors)))
        places: dict[Slot, int] = {}
        for number, label in enumerate(labels):
            match label:
                case int():
                    places[label] = number
                case ("weight", (int(model), str(name), 0)):
                    places[model, name] = number
        several = [structure != _ARRAY for structure in self.structures]
        slots = [
            (model, name) for model, names in enumerate(self.weights) for name in names
        ]
        for slot in itertools.compress(slots, several):
            places.pop(slot, None)
        return places

    def of_cache(self, number: int) -> range:
        """The numbers of the inputs of a cache."""
        count = sum(structure.num_leaves for structure in self.structures)
        first = count + sum(self.tensors) + sum(self.caches[:number])
        return range(first, first + self.caches[number])
