"""The caches of a call: arguments that come back overwritten, what they are called, and where they lie."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import jax
import torch

from tpuport.compilation import is_transformers_cache
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.placement import nbytes
from tpuport.topology.advice.returned import Returned

_TENSOR: Final = re.compile(r"(tensors|donated)\[(\d+)\]")
_ALIASES: Final = re.compile(r"\binput_output_alias=\{ (.*?) \}")
_ALIASED: Final = re.compile(r"\((\d+), \{")


class Input(NamedTuple):
    """A tensor among a call's inputs.

    Attributes:
        name: "past_key_values.0.1".
        in_cache: whether a cache of transformers has it, which `tpuport.compile` donates.
    """

    name: str
    value: Any
    in_cache: bool


def inputs_of(evidence: Evidence) -> dict[str, Input]:
    """Tensors of a call by the names that its program has for them: "tensors[0]", or "donated[0]" of a cache."""
    found, apart = list(_tensors(dict(evidence.inputs))), bool(evidence.cache)
    plain = [one for one in found if not (apart and one.in_cache)]
    kept = [one for one in found if apart and one.in_cache]
    named = {f"tensors[{place}]": one for place, one in enumerate(plain)}
    return named | {f"donated[{place}]": one for place, one in enumerate(kept)}


def _tensors(inputs: dict[str, Any]) -> Iterator[Input]:
    for path, leaf in jax.tree_util.tree_flatten_with_path(inputs, is_leaf=is_transformers_cache)[0]:
        name, kept = jax.tree_util.keystr(path, simple=True, separator="."), is_transformers_cache(leaf)
        for value in jax.tree.leaves(leaf) if kept else [leaf]:
            if isinstance(value, torch.Tensor | jax.ShapeDtypeStruct):
                yield Input(name, value, kept)


def input_of(inputs: Mapping[str, Input], one: Returned) -> Input | None:
    """The input that an argument of a forward call's program is; None where it is something else."""
    name = _TENSOR.search(one.name)
    found = inputs.get(name[0]) if name else None
    return found if found is not None and tuple(found.value.shape) == one.shape else None


def called(inputs: Mapping[str, Input], some: Iterable[Returned]) -> str:
    """What arguments are called together: "past_key_values", "keys and values"."""
    found = ((one.name, input_of(inputs, one)) for one in some)
    names = (name if each is None else each.name for name, each in found)
    return " and ".join(dict.fromkeys(re.split(r"[.\[]", name)[0] or "an argument" for name in names))


def taken_over(evidence: Evidence) -> set[int]:
    """The arguments whose memory outputs take over, by number."""
    found = _ALIASES.search(evidence.program.header) if evidence.program else None
    return set(map(int, _ALIASED.findall(found[1]))) if found else set()


def share_given(evidence: Evidence, one: Returned) -> tuple[int, ...]:
    """The shape of an argument on one device."""
    program = evidence.program
    given = program.computations[program.entry].parameters.get(one.argument) if program else None
    return tuple(given.arrays[0].dims) if given is not None and given.arrays else one.shape


def share_made(evidence: Evidence, one: Returned) -> tuple[int, ...]:
    """The shape on one device of what it comes back as."""
    program = evidence.program
    made = program.computations[program.entry].root.arrays if program else ()
    return tuple(made[one.output].dims) if one.output < len(made) else one.shape


def share_bytes(one: Returned, share: tuple[int, ...]) -> int:
    """Bytes of a share of it."""
    return nbytes(jax.ShapeDtypeStruct(share, jax.numpy.dtype(one.dtype)))


def spec_of_share(evidence: Evidence, whole: tuple[int, ...], share: tuple[int, ...]) -> str:
    """The PartitionSpec that makes such a share: PartitionSpec(None, 'tp')."""
    free, entries = dict(evidence.sizes), []
    for extent, part in zip(whole, share, strict=False):
        axis = next((name for name, size in free.items() if part and extent == part * size > part), None)
        free.pop(axis or "", None)
        entries.append(repr(axis) if axis else "None")
    while entries and entries[-1] == "None":
        entries.pop()
    return f"PartitionSpec({', '.join(entries)})"
