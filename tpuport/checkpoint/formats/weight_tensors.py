"""The tensors of one weight in a quantised checkpoint, collected by the name of the
weight, and errors about them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tpuport.base.plurals import list_some
from tpuport.checkpoint.lazy_tensors import LazyTensor, StoredTensor
from tpuport.errors import PortError

Tensors = Mapping[str, StoredTensor | None]
Adapted = dict[str, LazyTensor | None]


class BadWeightError(Exception):
    """What is wrong with the tensors of a weight."""


@dataclass
class WeightTensors:
    """The tensors that a checkpoint has for one weight, by the endings of their names.

    Attributes:
        module: the name of the module that has the weight.
    """

    module: str
    tensors: dict[str, StoredTensor | None] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether all their files can be read."""
        return None not in self.tensors.values()

    def __contains__(self, ending: str) -> bool:
        return ending in self.tensors

    def get(
        self, ending: str, shape: tuple[int | None, ...] | None = None, kinds: str = ""
    ) -> StoredTensor:
        """The tensor with this ending.

        Args:
            shape: that it must have; None for any size.
            kinds: of its dtype, by NumPy's letters ("iu" for integers); "" for any.
                Floating types are "f".

        Raises:
            BadWeightError: it is absent, or has another shape or dtype.
        """
        tensor = self.tensors.get(ending)
        if tensor is None:
            raise BadWeightError(f"{ending} is missing")
        if shape is not None:
            fits = len(shape) == len(tensor.shape) and all(
                expected in (None, size)
                for expected, size in zip(shape, tensor.shape, strict=True)
            )
            if not fits:
                wanted = [size if size is not None else "any" for size in shape]
                raise BadWeightError(
                    f"{ending} has shape {list(tensor.shape)}, and needs {wanted}"
                )
        if kinds and kind_of(tensor.dtype) not in kinds:
            raise BadWeightError(
                f"{ending} is {tensor.dtype}, which this format does not have"
            )
        return tensor


def kind_of(dtype: np.dtype) -> str:
    """NumPy's letter for the kind of a dtype, but "f" for floating types of jax too."""
    return "f" if dtype.kind == "V" else dtype.kind


def _needs_scale(dtype: np.dtype) -> bool:
    """Whether no weight has this dtype without being quantised; integers are refused
    where they become weights.
    """
    return kind_of(dtype) == "f" and dtype.itemsize == 1


def collect(
    tensors: Tensors, endings: tuple[str, ...], marker: str
) -> tuple[list[WeightTensors], Adapted]:
    """Collect the tensors of every quantised weight.

    Args:
        endings: of the names of a weight's tensors, which follow the module's name and
            a dot.
        marker: the ending that only a quantised weight has.

    Returns:
        The weights, and all other tensors.
    """
    modules = {
        name.removesuffix(f".{marker}")
        for name in tensors
        if name.endswith(f".{marker}")
    }
    weights = {module: WeightTensors(module) for module in sorted(modules)}
    others: Adapted = {}
    for name, tensor in tensors.items():
        ending = next(
            (ending for ending in endings if name.endswith(f".{ending}")), None
        )
        module = name.removesuffix(f".{ending}")
        if ending is None or module not in weights:
            others[name] = tensor
        else:
            weights[module].tensors[ending] = tensor
    return list(weights.values()), others


def adapt_each(
    weights: list[WeightTensors], others: Adapted, adapt: Any, leaf: str = "weight"
) -> Adapted:
    """All tensors as an unquantised checkpoint would have them, by the names it would
    give them.

    Args:
        adapt: a function of `WeightTensors` to the weight, which raises
            `BadWeightError`.
        leaf: the name of the weight in its module.

    Raises:
        PortError: the tensors of some weights do not fit together; all of these are
            listed.
    """
    adapted = dict(others)
    problems = [
        f"{name}: it is {tensor.dtype}, and its scale is missing"
        for name, tensor in others.items()
        if tensor is not None and _needs_scale(tensor.dtype)
    ]
    for weight in weights:
        name = f"{weight.module}.{leaf}"
        if not weight.is_complete:
            adapted[name] = None
            continue
        try:
            adapted[name] = adapt(weight)
        except BadWeightError as error:
            problems.append(f"{weight.module}: {error}")
    if problems:
        raise PortError(
            list_some("quantised weights of the checkpoint cannot be read:", problems),
            fix="check that config.json belongs to these files, and that every file was copied whole",
        )
    return adapted
