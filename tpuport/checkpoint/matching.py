"""Find, for each parameter of a model, which tensors of a checkpoint make it.

transformers renames and merges tensors when it loads (a Mixtral's experts are separate on disk and one tensor
in memory). Its own rules are applied here, to tensors that are still on disk.
"""

import copy
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tpuport import compat
from tpuport.checkpoint.lazy import Converted, LazyTensor, NotSliceable, StoredTensor
from tpuport.checkpoint.reading import Index, Reader, aligned_empty, full_index
from tpuport.library_classes import is_diffusers_class

_logger = logging.getLogger("tpuport")

# What an operation of the library raises when it meets a tensor that is still on disk, or that does not fit.
_CONVERSION_ERRORS = (
    NotSliceable,
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)

Tensors = Mapping[str, StoredTensor | None]


@dataclass
class Match:
    """What a checkpoint gives a model.

    Args:
        sources: what to read for each name of the model's state dict.
        unexpected: names that the model has no place for.
        unknown: names of the model whose tensors are in files that cannot be read.
        problems: conversions that failed.
    """

    sources: dict[str, LazyTensor] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


@dataclass
class _Conversion:
    """One of transformers' converters, and what feeds one use of it: (name, source pattern, tensor)."""

    converter: Any
    inputs: list[tuple[str, str, StoredTensor | None]] = field(default_factory=list)


def match_tensors(model: torch.nn.Module, tensors: Tensors) -> Match:
    """Match a checkpoint's tensors with the names of the model's state dict, by its library's rules."""
    if is_diffusers_class(type(model)):
        return _match_diffusers(model, tensors)
    return _match_transformers(model, tensors)


def _match_diffusers(model: Any, tensors: Tensors) -> Match:
    match, expected = Match(), model.state_dict()
    renamed = dict(tensors)
    model._fix_state_dict_keys_on_load(renamed)
    for name, tensor in renamed.items():
        _add(match, name, tensor) if name in expected else match.unexpected.append(name)
    _drop_ignored(match, model._keys_to_ignore_on_load_unexpected or ())
    return match


def _match_transformers(model: Any, tensors: Tensors) -> Match:
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, dot_natural_key, rename_source_key

    match, expected = Match(), model.state_dict()
    rules = get_model_conversion_mapping(model)
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    renamings: Any = [rule for rule in rules if not isinstance(rule, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    conversions: dict[str, _Conversion] = {}
    for name in sorted(tensors, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, expected)
        if target not in expected and name in expected:
            target, pattern = rename_source_key(name, [], [], model.base_model_prefix, expected)
        if target not in expected:
            match.unexpected.append(name)
        elif pattern is None:
            _add(match, target, tensors[name])
        else:
            conversion = conversions.setdefault(target, _Conversion(by_pattern[pattern]))
            conversion.inputs.append((name, pattern, tensors[name]))
    for target, conversion in conversions.items():
        _convert(match, model, target, conversion)
    # The model saves itself again in the form that it was read in.
    model._weight_conversions = [rule for rule in rules if rule.was_used()]
    _drop_ignored(match, _ignored_transformers(model))
    return match


def _ignored_transformers(model: Any) -> list[str]:
    """Patterns of tensors in old checkpoints that the model does without, as for `from_pretrained`."""
    patterns: list[str] = list(model._keys_to_ignore_on_load_unexpected or ())
    buffers = [name for name, _ in model.named_buffers()]
    if any(name.endswith("rotary_emb.inv_freq") for name in buffers):
        patterns.append(r"rotary_emb\.inv_freq")
    if any(name.endswith("position_ids") for name in buffers):
        patterns.append(r"(^|\.)position_ids$")
    return patterns


def _drop_ignored(match: Match, patterns: Any) -> None:
    ignored = [name for name in match.unexpected if any(re.search(pattern, name) for pattern in patterns)]
    if ignored:
        _logger.info("tensors that the model ignores by its own list: %s", ", ".join(ignored))
        match.unexpected = [name for name in match.unexpected if name not in ignored]


def _add(match: Match, name: str, tensor: LazyTensor | None) -> None:
    if tensor is None:
        match.unknown.add(name)
    else:
        match.sources[name] = tensor


def _convert(match: Match, model: Any, target: str, conversion: _Conversion) -> None:
    """Add what a conversion makes to `match`, as slices where its operations allow it."""
    converter, inputs = conversion.converter, conversion.inputs
    tensors = [tensor for _, _, tensor in inputs if tensor is not None]
    if len(tensors) < len(inputs):
        first = converter.target_patterns[0]
        match.unknown.update(target.replace(first, pattern) for pattern in converter.target_patterns)
        return

    def run(values: list[Any]) -> dict[str, Any]:
        used = copy.deepcopy(converter)
        for (name, pattern, _), value in zip(inputs, values, strict=True):
            used.add_tensor(target, name, pattern, value)
        made = used.convert(target, model=model, config=model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}

    try:
        made = run(list(tensors))
    except _CONVERSION_ERRORS as unsliceable:
        try:
            made = _converted_on_host(run, tensors)
        except _CONVERSION_ERRORS as error:
            names = ", ".join(name for name, _, _ in inputs)
            match.problems.append(f"{target} cannot be made from {names}: {error}")
            match.unknown.add(target)
            return
        _logger.info("%s is converted whole on the host: %r is not sliceable", target, unsliceable)
    for name, tensor in made.items():
        _add(match, name, tensor) if name in model.state_dict() else match.unexpected.append(name)


def _converted_on_host(
    run: Callable[[list], dict[str, Any]], tensors: list[StoredTensor]
) -> dict[str, LazyTensor]:
    """The conversion on real tensors, delayed until a result is read; shapes come from a dry run."""
    shapes = run(
        [
            torch.empty(tensor.shape, device="meta", dtype=compat.torch_dtype(tensor.dtype))
            for tensor in tensors
        ]
    )
    key = object()

    def compute_all(reader: Reader) -> dict[str, np.ndarray]:
        results = run([_as_torch(tensor.read(reader, tensor.dtype)) for tensor in tensors])
        return {name: _as_numpy(value, tensors[0].dtype) for name, value in results.items()}

    def compute(name: str) -> Callable[[Reader], np.ndarray]:
        return lambda reader: reader.remember(key, lambda: compute_all(reader))[name]

    return {
        name: Converted(tuple(value.shape), tensors[0].dtype, compute(name), tuple(tensors))
        for name, value in shapes.items()
    }


def held(tensor: torch.Tensor) -> LazyTensor:
    """A tensor that is in memory already, in the form that those on disk have."""
    array = _as_numpy(tensor, compat.jax_dtype(tensor.dtype))
    return Converted(array.shape, array.dtype, lambda reader: array, ())


def _as_torch(array: np.ndarray) -> torch.Tensor:
    """A torch view of `array`; through bytes, because NumPy's bfloat16 is not torch's."""
    return (
        torch.from_numpy(array.reshape(-1).view(np.uint8))
        .view(compat.torch_dtype(array.dtype))
        .reshape(array.shape)
    )


def _as_numpy(tensor: torch.Tensor, dtype: np.dtype) -> np.ndarray:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().view(dtype).reshape(tuple(tensor.shape))


def same_contents(first: LazyTensor, second: LazyTensor, rows: int = 1024) -> bool:
    """Whether two stored tensors are equal bit for bit, compared a few rows at a time."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    length = first.shape[0] if first.shape else 1
    with Reader() as reader:
        for start in range(0, length, rows):
            part = slice(start, min(start + rows, length))
            index = (part, *full_index(first.shape[1:])) if first.shape else ()
            if not np.array_equal(_block(first, reader, index), _block(second, reader, index)):
                return False
    return True


def _block(tensor: LazyTensor, reader: Reader, index: Index) -> np.ndarray:
    """The bytes of `tensor[index]`."""
    block = aligned_empty(tuple(part.stop - part.start for part in index), tensor.dtype)
    tensor.read_into(reader, index, block)
    return block.reshape(-1).view(np.uint8)
