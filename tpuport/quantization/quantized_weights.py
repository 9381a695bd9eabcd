"""A module's weight in few bits: kept in a submodule, and computed whenever the
module's code reads it.

The module itself gets a class of its own, in which the weight is a property. Code that
multiplies by the weight (`torch.nn.functional.linear`) uses the values as they are
stored; any other code sees the numbers they stand for.
"""

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import torch

from tpuport import compat
from tpuport.base.mappings import without_nones
from tpuport.errors import PortError

if TYPE_CHECKING:
    from tpuport.compat.operators.quantized import QuantizedArray

# Appended to the name of a weight for the submodule that has its values.
SUFFIX = "_quantized"


class QuantizedWeight(torch.nn.Module):
    """The parts of a weight as buffers, which may be on the meta device; see
    `QuantizedArray` for their shapes.

    Args:
        levels: the numbers that values are the indices of; None if values are numbers
            themselves.
        output_block: neighbouring outputs that share a scale.
        columns: the inputs of the weight.
        dtype: of the weight.
        scheme: its name, for people.
        transposed: whether the weight is [..., K, O], and not [..., O, K].
        rounds_activations: whether products with it round activations too.
        segments: equal parts of the inputs that are each filled up to whole groups.
    """

    values: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor | None
    order: torch.Tensor | None
    outer_scale: torch.Tensor | None
    minimum: torch.Tensor | None
    outer_minimum: torch.Tensor | None

    def __init__(
        self,
        values: torch.Tensor,
        scale: torch.Tensor,
        zero_point: torch.Tensor | None = None,
        order: torch.Tensor | None = None,
        outer_scale: torch.Tensor | None = None,
        minimum: torch.Tensor | None = None,
        outer_minimum: torch.Tensor | None = None,
        *,
        levels: tuple[float, ...] | None = None,
        output_block: int = 1,
        columns: int,
        dtype: torch.dtype,
        scheme: str,
        transposed: bool = False,
        rounds_activations: bool = False,
        segments: int = 1,
    ) -> None:
        super().__init__()
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)
        self.register_buffer("zero_point", zero_point)
        self.register_buffer("order", order)
        self.register_buffer("outer_scale", outer_scale)
        self.register_buffer("minimum", minimum)
        self.register_buffer("outer_minimum", outer_minimum)
        self.levels = levels
        self.output_block = output_block
        self.columns = columns
        self.dtype = dtype
        self.scheme = scheme
        self.transposed = transposed
        self.rounds_activations = rounds_activations
        self.segments = segments
        # Of parts on the meta device or on the host, for which torch lacks some types.
        self.part_dtypes: dict[str, np.dtype] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """The weight's shape, [..., O, K] or transposed."""
        *leading, _, _, outputs = self.values.shape
        matrix = (self.columns, outputs) if self.transposed else (outputs, self.columns)
        return (*leading, *matrix)

    @property
    def ndim(self) -> int:
        """How many dimensions the weight has."""
        return len(self.shape)

    @property
    def parts(self) -> dict[str, torch.Tensor]:
        """The buffers that are there, by name."""
        return without_nones(self._buffers)

    @property
    def part_bytes(self) -> dict[str, int]:
        """The bytes of each part, by name, in the number of bits that its type has."""
        return {
            name: part.numel()
            * jax.dtypes.itemsize_bits(self._part_dtype(name, part))
            // 8
            for name, part in self.parts.items()
        }

    @property
    def part_arrays(self) -> dict[str, jax.Array]:
        """The parts as arrays, or tracers, of the types that they have on the
        device.
        """
        return {
            name: compat.to_jax(part).astype(self._part_dtype(name, part))
            for name, part in self.parts.items()
        }

    def _part_dtype(self, name: str, part: torch.Tensor) -> np.dtype:
        if compat.is_ported(part):
            return compat.to_jax(part).dtype
        return self.part_dtypes.get(name) or compat.jax_dtype(part.dtype)

    def array(self) -> "QuantizedArray":
        """The weight with its parts as arrays."""
        # Imported late: it is an operator of torchax, whose version is checked first.
        from tpuport.compat.operators.quantized import QuantizedArray

        arrays: dict[str, Any] = self.part_arrays
        for name in ("zero_point", "order"):
            arrays.setdefault(name, None)
        return QuantizedArray(
            **arrays,
            levels=self.levels,
            output_block=self.output_block,
            columns=self.columns,
            dtype=compat.jax_dtype(self.dtype),
            transposed=self.transposed,
            rounds_activations=self.rounds_activations,
            segments=self.segments,
        )

    def forward(self) -> torch.Tensor:
        """The weight that the parts stand for, where they are: on the device or on the
        host.
        """
        from tpuport.compat.operators.quantized import dequantize, mark_quantized

        if compat.is_ported(self.values):
            return mark_quantized(self.array())
        return compat.to_torch(dequantize(self.array()))

    def _apply(self, fn: Any, recurse: bool = True) -> "QuantizedWeight":
        """Let `model.to()` move the parts, and change the dtype of the weight, not
        theirs.
        """
        was_ported = compat.is_ported(self.values)
        example = torch.zeros((), dtype=self.dtype)
        if was_ported:
            example = compat.to_device(example)
        example = fn(example)
        self.dtype = example.dtype
        is_ported = compat.is_ported(example)
        if is_ported != was_ported:
            for name, array in self.part_arrays.items():
                self.part_dtypes[name] = array.dtype
                self._buffers[name] = (
                    compat.wrap(array) if is_ported else compat.to_torch(array)
                )
        return self

    def extra_repr(self) -> str:
        return f"{self.scheme}, shape={list(self.shape)}, dtype={self.dtype}"


def install(module: torch.nn.Module, name: str, weight: QuantizedWeight) -> None:
    """Let `module` read its parameter `name` from `weight` from now on."""
    module._parameters.pop(name, None)
    module.add_module(name + SUFFIX, weight)
    _change_class(module)


def restore_dense(module: torch.nn.Module, name: str, weight: torch.Tensor) -> None:
    """Undo `install`, with `weight` as the parameter."""
    del module._modules[name + SUFFIX]
    _change_class(module)
    module._parameters[name] = torch.nn.Parameter(weight, requires_grad=False)


def quantized_weights(
    model: torch.nn.Module,
) -> Iterator[tuple[str, torch.nn.Module, str, QuantizedWeight]]:
    """Every quantised weight: its name in the model, the module that has it, its name
    there, and its parts.
    """
    for path, module in model.named_modules():
        for attribute, child in module._modules.items():
            if isinstance(child, QuantizedWeight):
                name = attribute.removesuffix(SUFFIX)
                yield (f"{path}.{name}" if path else name), module, name, child


def find_weight(module: torch.nn.Module) -> Any:
    """The parameter `weight` of a module, or the parts of it; None if there is neither.
    Both have a shape.
    """
    quantized = module._modules.get("weight" + SUFFIX)
    return getattr(module, "weight", None) if quantized is None else quantized


def part_name(weight: str, part: str) -> str:
    """The name in a model of the buffer that is a part of the weight of this name."""
    return f"{weight}{SUFFIX}.{part}"


def part_names(model: torch.nn.Module) -> frozenset[str]:
    """The names in `model` of the buffers that are parts of quantised weights."""
    return frozenset(
        part_name(name, part)
        for name, _, _, weight in quantized_weights(model)
        for part in weight.parts
    )


def _change_class(module: torch.nn.Module) -> None:
    """Give a module the class that has properties for its quantised weights, or its own
    if it has none.
    """
    names = tuple(
        name.removesuffix(SUFFIX)
        for name, child in module._modules.items()
        if isinstance(child, QuantizedWeight)
    )
    original = getattr(type(module), "tpuport_dense_class", type(module))
    module.__class__ = _class_with_properties(original, names) if names else original


@functools.cache
def _class_with_properties(cls: type, names: tuple[str, ...]) -> type:
    # The same class for all modules of a kind: programs are keyed by it.
    attributes: dict[str, Any] = {
        name: property(functools.partial(_read_weight, name=name), _refuse_assignment)
        for name in names
    }

    def register_parameter(self: Any, name: str, parameter: Any) -> None:
        if name in names:
            _refuse_assignment(self, parameter)
        cls.register_parameter(self, name, parameter)  # type: ignore[attr-defined]

    def load_from_state_dict(
        self: Any, state_dict: Any, prefix: str, *args: Any
    ) -> None:
        stored = [prefix + name for name in names if prefix + name in state_dict]
        if stored:
            raise PortError(
                "ordinary weights cannot be loaded into quantised ones",
                where=stored[0],
                fix="tpuport.to_cpu(model), load them, and port it again with quantize=",
            )
        cls._load_from_state_dict(self, state_dict, prefix, *args)  # type: ignore[attr-defined]

    attributes |= {
        "_load_from_state_dict": load_from_state_dict,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "register_parameter": register_parameter,
        "tpuport_dense_class": cls,
    }
    return type(cls.__name__, (cls,), attributes)


def _read_weight(module: torch.nn.Module, name: str) -> torch.Tensor:
    return module._modules[name + SUFFIX]()  # type: ignore[misc]


def _refuse_assignment(module: torch.nn.Module, value: Any) -> None:
    raise PortError(
        "a quantised weight cannot be replaced",
        where=type(module).__name__,
        fix="tpuport.to_cpu(model), replace it, and port it again with quantize=",
    )
