"""Weights in few bits that are still on disk, and dense ones that become so while they
are read.

Letters as in `compat.operators.quantized`: a weight [..., O, K] is kept as values
[..., G, I, O] with scales [..., G, B].
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from tpuport.base.mappings import without_nones
from tpuport.checkpoint.lazy_tensors import (
    BLOCK_BYTES,
    Index,
    LazyTensor,
    Reader,
    full_index,
    index_shape,
    transpose,
)
from tpuport.quantization import Scheme

PARTS = (
    "values",
    "scale",
    "zero_point",
    "order",
    "outer_scale",
    "minimum",
    "outer_minimum",
)


@dataclass(frozen=True, eq=False)
class QuantizedTensor(LazyTensor):
    """A weight [..., O, K], or transposed, of `dtype` whose parts are tensors to be
    read.

    See `QuantizedArray` for their shapes.

    Attributes:
        output_block: neighbouring outputs that share a scale.
        scheme: its name, for people.
        transposed: whether the weight is [..., K, O].
        rounds_activations: whether products with it round activations too.
        segments: equal parts of the inputs that are each filled up to whole groups.
    """

    values: LazyTensor
    scale: LazyTensor
    zero_point: LazyTensor | None = None
    order: LazyTensor | None = None
    outer_scale: LazyTensor | None = None
    minimum: LazyTensor | None = None
    outer_minimum: LazyTensor | None = None
    levels: tuple[float, ...] | None = None
    output_block: int = 1
    scheme: str = ""
    transposed: bool = False
    rounds_activations: bool = False
    segments: int = 1

    @property
    def parts(self) -> dict[str, LazyTensor]:
        """The tensors that are there, by the names of `QuantizedWeight`'s buffers."""
        tensors = {name: getattr(self, name) for name in PARTS}
        return without_nones(tensors)

    @property
    def columns(self) -> int:
        """Inputs of the weight."""
        return self.shape[-2 if self.transposed else -1]

    @property
    def stored_bytes(self) -> int:
        return sum(tensor.stored_bytes for tensor in self.parts.values())

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        """The numbers that the weight stands for, for a model that reads it in another
        form.
        """
        *leading, rows, columns = index
        if self.transposed:
            rows, columns, out = columns, rows, out.swapaxes(-1, -2)
        # Some at a time, because numbers in float32 are much larger than what they
        # become.
        stacked = prod(index_shape(tuple(leading)))
        step = max(
            1,
            BLOCK_BYTES
            // max(1, stacked * self.columns * np.dtype(np.float32).itemsize),
        )
        for start in range(rows.start, rows.stop, step):
            some = slice(start, min(start + step, rows.stop))
            target = out[..., some.start - rows.start : some.stop - rows.start, :]
            self._read_rows(reader, leading, some, columns, target)

    def _read_rows(
        self,
        reader: Reader,
        leading: list[slice],
        rows: slice,
        columns: slice,
        out: np.ndarray,
    ) -> None:
        _, inputs, _ = self.values.shape[-3:]
        if self.order is not None or self.segments > 1:
            columns_stop, first_group, last_group = (
                self.columns,
                0,
                self.values.shape[-3],
            )
        else:
            columns_stop = columns.stop
            first_group, last_group = (
                columns.start // inputs,
                -(-columns.stop // inputs),
            )
        groups = slice(first_group, last_group)
        values = self._read(
            reader, self.values, (*leading, groups, slice(0, inputs), rows)
        )
        if self.levels is None:
            numbers = values.astype(np.float32)
        else:
            numbers = np.asarray(self.levels, np.float32)[values.astype(np.int32)]
        if self.zero_point is not None:
            numbers -= self._per_output(reader, self.zero_point, leading, groups, rows)
        numbers *= self._per_output(
            reader, _multiplied(self.scale, self.outer_scale), leading, groups, rows
        )
        if self.minimum is not None:
            minimum = _multiplied(self.minimum, self.outer_minimum)
            numbers -= self._per_output(reader, minimum, leading, groups, rows)
        # [..., G, I, O] to [..., O, K]
        flat = numbers.reshape(*numbers.shape[:-3], -1, numbers.shape[-1]).swapaxes(
            -1, -2
        )
        if self.segments > 1:
            flat = _without_padding(flat, self.segments, self.columns)
        flat = flat[..., : columns_stop - first_group * inputs]
        if self.order is not None:
            flat = flat[
                ...,
                np.argsort(
                    self._read(reader, self.order, full_index(self.order.shape))
                ),
            ]
        start = columns.start - first_group * inputs
        out[...] = flat[..., start : start + columns.stop - columns.start].astype(
            self.dtype
        )

    def _per_output(
        self,
        reader: Reader,
        tensor: LazyTensor,
        leading: list[slice],
        groups: slice,
        rows: slice,
    ) -> np.ndarray:
        """[..., G, B] as float32 [..., G, 1, O], of these groups and outputs."""
        blocks = slice(0, tensor.shape[-1])
        if blocks.stop == self.values.shape[-1]:
            return self._read(reader, tensor, (*leading, groups, rows)).astype(
                np.float32
            )[..., None, :]
        everything = self._read(reader, tensor, (*leading, groups, blocks)).astype(
            np.float32
        )
        return np.repeat(everything, self.output_block, axis=-1)[..., None, rows]

    def multiply_out(self) -> "QuantizedTensor":
        """The same without factors that groups share: scales and minima are float32."""
        return dataclasses.replace(
            self,
            scale=_multiplied(self.scale, self.outer_scale),
            outer_scale=None,
            minimum=None
            if self.minimum is None
            else _multiplied(self.minimum, self.outer_minimum),
            outer_minimum=None,
        )

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func in _FUNCTIONS:
            result = _FUNCTIONS[func](*args, **(kwargs or {}))
            if result is not None:
                return result
        return super().__torch_function__(func, types, args, kwargs)

    @staticmethod
    def _read(reader: Reader, tensor: LazyTensor, index: Index) -> np.ndarray:
        return tensor.read(reader, index, tensor.dtype)


@dataclass(frozen=True, eq=False)
class _Multiplied(LazyTensor):
    """Numbers of groups [..., G, B], times those that neighbouring groups share
    [..., S, B], in float32.
    """

    inner: LazyTensor
    outer: LazyTensor

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        *others, groups, blocks = index
        size = self.inner.shape[-2] // self.outer.shape[-2]
        shared = slice(groups.start // size, -(-groups.stop // size))
        inner = self.inner.read(reader, index, self.inner.dtype).astype(np.float32)
        outer = self.outer.read(
            reader, (*others, shared, blocks), self.outer.dtype
        ).astype(np.float32)
        start = groups.start - shared.start * size
        factors = np.repeat(outer, size, axis=-2)[
            ..., start : start + groups.stop - groups.start, :
        ]
        out[...] = inner * factors


def _multiplied(inner: LazyTensor, outer: LazyTensor | None) -> LazyTensor:
    if outer is None:
        return inner
    return _Multiplied(inner.shape, np.dtype(np.float32), inner, outer)


@dataclass(frozen=True, eq=False)
class Grouped(LazyTensor):
    """`base` [..., O, K] as [..., G, I, O]; what the last group has beyond K is
    zero.
    """

    base: LazyTensor

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        *leading, groups, inputs, outputs = index
        size, columns = self.shape[-2], self.base.shape[-1]
        if inputs != slice(0, size) and groups.stop - groups.start > 1:
            # What is needed of several groups are no neighbouring columns.
            for group in range(groups.start, groups.stop):
                single = (*leading, slice(group, group + 1), inputs, outputs)
                target = group - groups.start
                self.read_into(reader, single, out[..., target : target + 1, :, :])
            return
        start = groups.start * size + inputs.start
        stop = (groups.stop - 1) * size + inputs.stop
        end = max(start, min(stop, columns))
        # Straight into `out`: groups follow one another there too.
        shape = (*out.shape[:-3], stop - start, out.shape[-1])
        flat = np.reshape(out, shape, copy=False).swapaxes(-1, -2)
        if start < end:
            self.base.read_into(
                reader, (*leading, outputs, slice(start, end)), flat[..., : end - start]
            )
        flat[..., end - start :] = 0


@dataclass(frozen=True, eq=False)
class Filled(LazyTensor):
    """`base` [..., O, K], each of whose equal segments is followed by zeros."""

    base: LazyTensor
    segments: int

    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        *others, columns = index
        stored, filled = (
            self.base.shape[-1] // self.segments,
            self.shape[-1] // self.segments,
        )
        out[...] = 0
        for segment in range(columns.start // filled, -(-columns.stop // filled)):
            start = max(columns.start - segment * filled, 0)
            stop = min(columns.stop - segment * filled, stored)
            if start < stop:
                source = slice(segment * stored + start, segment * stored + stop)
                offset = segment * filled - columns.start
                out[..., offset + start : offset + stop] = self.base.read(
                    reader, (*others, source), self.base.dtype
                )


def _without_padding(filled: np.ndarray, segments: int, columns: int) -> np.ndarray:
    """[..., K] from what `Filled` makes of it."""
    *leading, width = filled.shape
    parts = filled.reshape(*leading, segments, width // segments)[
        ..., : columns // segments
    ]
    return parts.reshape(*leading, columns)


@dataclass(frozen=True, eq=False)
class _Quantized(LazyTensor):
    """One result of quantising `source` [..., O, K], from the groups that a slice of it
    needs.
    """

    source: LazyTensor
    scheme: Scheme
    group_inputs: int
    scale_dtype: np.dtype

    def blocks(
        self, reader: Reader, leading: list[slice], groups: slice, outputs: slice
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Some outputs at a time, because numbers in float32 are much larger than what
        is left of them.

        Yields:
            Where in `outputs` they are, their values [..., O, G, I], and their scales
            [..., O, G].
        """
        grouped = group_columns(self.source, self.group_inputs)
        step = max(
            1, BLOCK_BYTES // (self.source.shape[-1] * np.dtype(np.float32).itemsize)
        )
        for start in range(outputs.start, outputs.stop, step):
            rows = slice(start, min(start + step, outputs.stop))
            weights = grouped.read(
                reader,
                (*leading, groups, slice(0, self.group_inputs), rows),
                self.source.dtype,
            )
            values, scale = self.scheme.quantize(
                np.moveaxis(weights, -1, -3), self.scale_dtype
            )
            yield (
                slice(rows.start - outputs.start, rows.stop - outputs.start),
                values,
                scale,
            )


@dataclass(frozen=True, eq=False)
class _QuantizedValues(_Quantized):
    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        *leading, groups, inputs, outputs = index
        for rows, values, _ in self.blocks(reader, leading, groups, outputs):
            out[..., rows] = np.moveaxis(values[..., inputs], -3, -1)


@dataclass(frozen=True, eq=False)
class _QuantizedScale(_Quantized):
    def read_into(self, reader: Reader, index: Index, out: np.ndarray) -> None:
        *leading, groups, outputs = index
        for rows, _, scale in self.blocks(reader, leading, groups, outputs):
            out[..., rows] = np.moveaxis(scale, -2, -1)


def group_columns(base: LazyTensor, size: int) -> LazyTensor:
    """`base` [..., O, K] as [..., G, I, O], with `size` inputs in a group."""
    *leading, outputs, columns = base.shape
    return Grouped((*leading, -(-columns // size), size, outputs), base.dtype, base)


def quantizing(
    source: LazyTensor, scheme: Scheme, dtype: np.dtype, *, transposed: bool = False
) -> QuantizedTensor:
    """`source` [..., O, K], or transposed, quantised while it is read; scales have the
    weight's `dtype`.
    """
    shape = source.shape
    if transposed:
        source = transpose(source, -1, -2)
    *leading, outputs, columns = source.shape
    # Devices have whole experts.
    size, segments = (
        scheme.grouping(columns, 1) if leading else scheme.grouping(columns)
    )
    if segments > 1:
        columns = segments * -(-(columns // segments) // size) * size
        source = Filled((*leading, outputs, columns), source.dtype, source, segments)
    groups = -(-columns // size)
    values = _QuantizedValues(
        (*leading, groups, size, outputs), scheme.dtype, source, scheme, size, dtype
    )
    scale = _QuantizedScale(
        (*leading, groups, outputs), dtype, source, scheme, size, dtype
    )
    return QuantizedTensor(
        shape,
        dtype,
        values,
        scale,
        scheme=scheme.name,
        transposed=transposed,
        # Stacks of experts are multiplied in forms that would not all round.
        rounds_activations=scheme.rounds_activations and not leading,
        segments=segments,
    )


# What conversions of mixture-of-experts checkpoints do with the weights of single
# experts, where the result can stay in few bits; otherwise None.


def _stack(tensors: Sequence[Any], dim: int = 0) -> QuantizedTensor | None:
    if (
        dim != 0
        or not _are_alike(tensors)
        or len({tensor.shape for tensor in tensors}) > 1
    ):
        return None
    parts = {
        name: torch.stack([getattr(tensor, name) for tensor in tensors])
        for name in tensors[0].parts
    }
    return dataclasses.replace(
        tensors[0], shape=(len(tensors), *tensors[0].shape), **parts
    )


def _cat(tensors: Sequence[Any], dim: int = 0) -> QuantizedTensor | None:
    """Along outputs, as of gate and up."""
    if (
        not _are_alike(tensors)
        or dim % len(tensors[0].shape) != len(tensors[0].shape) - 2
    ):
        return None
    first, *others = tensors
    *leading, _, columns = first.shape
    if any(
        (*other.shape[:-2], other.columns) != (*leading, columns) for other in others
    ):
        return None
    # Blocks of outputs go on from one weight to the next.
    if any(tensor.shape[-2] % tensor.output_block for tensor in tensors):
        return None
    parts = {
        name: torch.cat([getattr(tensor, name) for tensor in tensors], dim=-1)
        for name in first.parts
    }
    outputs = sum(tensor.shape[-2] for tensor in tensors)
    return dataclasses.replace(first, shape=(*leading, outputs, columns), **parts)


def _are_alike(tensors: Sequence[Any]) -> bool:
    """Whether weights can be parts of a single one; the order of inputs of each is its
    own.
    """
    return (
        all(
            isinstance(tensor, QuantizedTensor) and tensor.order is None
            for tensor in tensors
        )
        and not any(tensor.transposed for tensor in tensors)
        and len(set(map(_form, tensors))) == 1
    )


def _form(tensor: QuantizedTensor) -> tuple[Any, ...]:
    parts = tuple((name, part.dtype) for name, part in tensor.parts.items())
    layout = (tensor.output_block, tensor.segments, *tensor.values.shape[-3:-1])
    return (tensor.dtype, tensor.levels, layout, parts)


_FUNCTIONS: dict[Any, Callable[..., QuantizedTensor | None]] = {
    torch.stack: _stack,
    torch.cat: _cat,
}
