"""The caches of a call: arguments that come back overwritten, what they are called, and
where they are.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import jax
import torch

from tpuport.libraries.library_classes import is_transformers_cache
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.overwritten_inputs import OverwrittenInput
from tpuport.topology.advice.weight_placement import whole_bytes
from tpuport.topology.hlo.array_types import search_group

# The arguments of the program of a forward call, as `abstract_steps` names them.
_ARRAY: Final = re.compile(r"((?:plain|donated)_arrays\[\d+\])")
_ALIASES: Final = re.compile(r"\binput_output_alias=\{ (.*?) \}")
_ALIASED_ARGUMENT: Final = re.compile(r"\((\d+), \{")

Shape = tuple[int, ...]


class CallInput(NamedTuple):
    """A tensor among a call's inputs.

    Attributes:
        name: "past_key_values.0.1".
        value: a tensor, or a jax.ShapeDtypeStruct.
        in_cache: whether it is part of a cache of transformers, which `tpuport.compile`
            donates.
    """

    name: str
    value: Any
    in_cache: bool


def name_inputs(evidence: Evidence) -> dict[str, CallInput]:
    """Tensors of a call by their names in its program: "plain_arrays[0]", or
    "donated_arrays[0]" of a cache.
    """
    named: dict[str, CallInput] = {}
    # `tpuport.compile` has two arguments: the tensors that it donates, and the others.
    numbers = {"plain_arrays": itertools.count(), "donated_arrays": itertools.count()}
    for entry in _tensors(evidence.inputs):
        argument = (
            "donated_arrays" if entry.in_cache and evidence.cache else "plain_arrays"
        )
        named[f"{argument}[{next(numbers[argument])}]"] = entry
    return named


def _tensors(inputs: Mapping[str, Any]) -> Iterator[CallInput]:
    # In jax's order of the leaves, in which `tpuport.compile` numbers the arrays.
    leaves = jax.tree_util.tree_flatten_with_path(
        dict(inputs), is_leaf=is_transformers_cache
    )[0]
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        # A cache has several tensors under its name; any other leaf is itself.
        for value in jax.tree.leaves(leaf):
            if isinstance(value, torch.Tensor | jax.ShapeDtypeStruct):
                yield CallInput(name, value, is_transformers_cache(leaf))


class CacheInputs:
    """Names and shares of the arguments of a program that come back overwritten."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence

    @functools.cached_property
    def _inputs(self) -> dict[str, CallInput]:
        return name_inputs(self._evidence)

    def find(self, array: OverwrittenInput) -> CallInput | None:
        """The input of a forward call that an argument is; None if it is something
        else.
        """
        match = self._inputs.get(search_group(_ARRAY, array.name))
        if match is None or tuple(match.value.shape) != array.shape:
            return None
        return match

    def joint_name(self, arrays: Iterable[OverwrittenInput]) -> str:
        """What arguments are called together: "past_key_values", "keys and values"."""
        # What is not an input of a forward call has the name that jax gives it.
        names = [(self.find(array) or array).name for array in arrays]
        stems = [re.split(r"[.\[]", name)[0] or "an argument" for name in names]
        return " and ".join(dict.fromkeys(stems))

    @functools.cached_property
    def reused(self) -> set[int]:
        """The numbers of the arguments whose memory results take over."""
        aliases = search_group(_ALIASES, self._evidence.compiled.header)
        return set(map(int, _ALIASED_ARGUMENT.findall(aliases)))

    def input_share(self, array: OverwrittenInput) -> Shape:
        """The shape of an argument on one device."""
        parameters = self._evidence.compiled.parameters
        # A program that was refused has no parameters.
        if array.argument not in parameters:
            return array.shape
        return parameters[array.argument].arrays[0].dims

    def output_share(self, array: OverwrittenInput) -> Shape:
        """The shape on one device of what an argument comes back as."""
        results = self._evidence.compiled.results
        return (
            results[array.output].dims if array.output < len(results) else array.shape
        )

    def input_bytes(self, arrays: Iterable[OverwrittenInput]) -> int:
        """Bytes of these arguments on one device."""
        return sum(_bytes(self.input_share(array), array.dtype) for array in arrays)

    def output_bytes(self, arrays: Iterable[OverwrittenInput]) -> int:
        """Bytes on one device of what these arguments come back as."""
        return sum(_bytes(self.output_share(array), array.dtype) for array in arrays)

    def write_spec(self, whole: Shape, share: Shape) -> str:
        """The PartitionSpec that gives a device such a share:
        PartitionSpec(None, 'tp').
        """
        unused: dict[str | None, int] = {**self._evidence.axis_sizes}
        entries: list[str | None] = []
        for length, part in zip(whole, share, strict=False):
            axes = (
                axis for axis, size in unused.items() if length == part * size > part
            )
            axis = next(axes, None)
            entries.append(axis)
            # An axis divides one dimension of an array only.
            unused.pop(axis, None)
        # Dimensions at the end that nothing divides need no entry.
        while entries[-1:] == [None]:
            entries.pop()
        return f"PartitionSpec({', '.join(map(repr, entries))})"


def _bytes(shape: Shape, dtype: str) -> int:
    return whole_bytes(jax.ShapeDtypeStruct(shape, jax.numpy.dtype(dtype)))
