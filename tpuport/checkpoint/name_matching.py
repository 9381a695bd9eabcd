"""Match the tensors of a checkpoint with the parameters of a model, and list everything
that does not match.

transformers renames and merges tensors when it loads (a Mixtral's experts are separate
on disk and a single tensor in memory). Its own rules are applied here, to tensors that
are still on disk.
"""

import copy
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch

from tpuport import compat
from tpuport.checkpoint.device_layout import find_owner, parameter_groups, put_parameter
from tpuport.checkpoint.lazy_tensors import (
    Converted,
    Index,
    LazyTensor,
    NotSliceable,
    Reader,
    full_index,
)
from tpuport.internals.diffusers_internals import rename_tensors
from tpuport.internals.transformers_internals import (
    absent_tensors,
    mark_initialized,
    note_conversions,
    unused_tensors,
)
from tpuport.libraries.library_classes import is_diffusers_class

_logger = logging.getLogger("tpuport")

# What an operation of the library raises when it meets a tensor that is still on disk,
# or that does not fit.
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
# How many names an error lists before it only counts the others.
_LISTED_NAMES = 100
# Buffers of old checkpoints that `from_pretrained` ignores too: the name of the buffer,
# and what to ignore.
_IGNORED_BUFFERS = {
    "rotary_emb.inv_freq": r"rotary_emb\.inv_freq",
    "position_ids": r"(^|\.)position_ids$",
}

Tensors = Mapping[str, LazyTensor | None]


@dataclass
class Match:
    """What a checkpoint has for a model.

    Args:
        expected: the names of the model's state dict.
        sources: what to read for each of them.
        unexpected: names in the checkpoint that the model does not have.
        unknown: names of the model whose tensors are in files that cannot be read.
        problems: conversions that failed.
    """

    expected: Collection[str]
    sources: dict[str, LazyTensor] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def add(self, name: str, tensor: LazyTensor | None) -> None:
        """Note the tensor of a name, None if its file cannot be read."""
        if name not in self.expected:
            self.unexpected.append(name)
        elif tensor is None:
            self.unknown.add(name)
        else:
            self.sources[name] = tensor

    def drop_ignored(self, patterns: Iterable[str]) -> None:
        """Forget unexpected tensors that the model ignores by its own list."""
        unexpected = [
            name for name in self.unexpected if not _matches_any(patterns, name)
        ]
        ignored = set(self.unexpected).difference(unexpected)
        if ignored:
            _logger.info(
                "tensors that the model ignores by its own list: %s",
                ", ".join(sorted(ignored)),
            )
        self.unexpected = unexpected


@dataclass
class _Conversion:
    """A use of one of transformers' converters, and its inputs: (name, source pattern,
    tensor).
    """

    converter: Any
    inputs: list[tuple[str, str, LazyTensor | None]] = field(default_factory=list)


def match_names(model: torch.nn.Module, tensors: Tensors) -> Match:
    """Match a checkpoint's tensors with the names of the model's state dict, by its
    library's rules.
    """
    if is_diffusers_class(type(model)):
        return _match_diffusers(model, tensors)
    return _match_transformers(model, tensors)


def _match_diffusers(model: Any, tensors: Tensors) -> Match:
    match = Match(model.state_dict().keys())
    # diffusers renames in place.
    renamed = dict(tensors)
    rename_tensors(model, renamed)
    for name, tensor in renamed.items():
        match.add(name, tensor)
    match.drop_ignored(unused_tensors(model))
    return match


def _match_transformers(model: Any, tensors: Tensors) -> Match:
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        dot_natural_key,
        rename_source_key,
    )

    expected, prefix = model.state_dict(), model.base_model_prefix
    match = Match(expected.keys())
    rules = get_model_conversion_mapping(model)
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    renamings: Any = [rule for rule in rules if not isinstance(rule, WeightConverter)]
    by_pattern = {
        pattern: converter
        for converter in converters
        for pattern in converter.source_patterns
    }
    conversions: dict[str, _Conversion] = {}
    # In transformers' order, because converters stack their inputs in the order in
    # which they come.
    for name in sorted(tensors, key=dot_natural_key):
        target, pattern = rename_source_key(
            name, renamings, converters, prefix, expected
        )
        if target not in expected and name in expected:
            # A checkpoint saved in the form of the model in memory needs no rule.
            target, pattern = rename_source_key(name, [], [], prefix, expected)
        if target not in expected:
            match.unexpected.append(name)
        elif pattern is None:
            match.add(target, tensors[name])
        else:
            conversion = conversions.setdefault(
                target, _Conversion(by_pattern[pattern])
            )
            conversion.inputs.append((name, pattern, tensors[name]))
    for target, conversion in conversions.items():
        _convert(match, model, target, conversion)
    # save_pretrained writes the form that was read.
    note_conversions(model, list(filter(_was_used, rules)))
    match.drop_ignored(_ignored_patterns(model))
    return match


def _was_used(rule: Any) -> bool:
    """Whether saving is to undo a rule: in releases where rules do not note it, all."""
    was_used = getattr(rule, "was_used", None)
    return was_used is None or was_used()


def _ignored_patterns(model: Any) -> list[str]:
    """Patterns of tensors in old checkpoints that the model does without, as for
    `from_pretrained`.
    """
    patterns: list[str] = unused_tensors(model)
    for name, _ in model.named_buffers():
        patterns += [
            pattern
            for suffix, pattern in _IGNORED_BUFFERS.items()
            if name.endswith(suffix)
        ]
    return patterns


def _convert(match: Match, model: Any, target: str, conversion: _Conversion) -> None:
    """Add the results of a conversion to `match`, as slices if its operations allow
    it.
    """
    converter, inputs = conversion.converter, conversion.inputs
    tensors = [tensor for _, _, tensor in inputs if tensor is not None]
    # A file that cannot be read is a problem already, so its tensors are not missing as
    # well.
    if len(tensors) < len(inputs):
        first = converter.target_patterns[0]
        match.unknown.update(
            target.replace(first, pattern) for pattern in converter.target_patterns
        )
        return

    def run(values: list[Any]) -> dict[str, Any]:
        # A converter collects its inputs in itself.
        converter_copy = copy.deepcopy(converter)
        for (name, pattern, _), value in zip(inputs, values, strict=True):
            converter_copy.add_tensor(target, name, pattern, value)
        results = converter_copy.convert(target, model=model, config=model.config)
        if isinstance(results, tuple):
            # transformers 5.0 adds a mapping of errors, of which it was given none.
            results, _ = results
        return {
            name: value[0] if isinstance(value, list) else value
            for name, value in results.items()
        }

    # On tensors that are still on disk first, so that each device reads only its own
    # slices.
    try:
        results = run(list(tensors))
    except _CONVERSION_ERRORS as unsliceable:
        try:
            results = _convert_on_host(run, tensors)
        except _CONVERSION_ERRORS as error:
            names = ", ".join(name for name, _, _ in inputs)
            match.problems.append(f"{target} cannot be made from {names}: {error}")
            match.unknown.add(target)
            return
        _logger.info(
            "%s is converted whole on the host: %r is not sliceable",
            target,
            unsliceable,
        )
    for name, tensor in results.items():
        match.add(name, tensor)


def _convert_on_host(
    run: Callable[[list], dict[str, Any]], tensors: list[LazyTensor]
) -> dict[str, LazyTensor]:
    """The conversion on real tensors, delayed until a result is read; shapes come from
    a dry run.
    """
    dtype = tensors[0].dtype
    shapes = run(list(map(_as_meta, tensors)))
    # One conversion may have several results, which are read one after the other.
    conversion_key = object()

    def compute_all(reader: Reader) -> dict[str, np.ndarray]:
        arrays = [
            tensor.read(reader, full_index(tensor.shape), tensor.dtype)
            for tensor in tensors
        ]
        results = run(list(map(_as_torch, arrays)))
        return {name: _as_numpy(value, dtype) for name, value in results.items()}

    def make_compute(name: str) -> Callable[[Reader], np.ndarray]:
        return lambda reader: reader.remember(
            conversion_key, lambda: compute_all(reader)
        )[name]

    return {
        name: Converted(tuple(value.shape), dtype, make_compute(name))
        for name, value in shapes.items()
    }


def _as_meta(tensor: LazyTensor) -> torch.Tensor:
    """A tensor of the same shape and dtype without values."""
    return torch.empty(
        tensor.shape, device="meta", dtype=compat.torch_dtype(tensor.dtype)
    )


def _as_lazy(tensor: torch.Tensor) -> LazyTensor:
    """A tensor that is in memory already, as a lazy one."""
    array = _as_numpy(tensor, compat.jax_dtype(tensor.dtype))
    return Converted(array.shape, array.dtype, lambda reader: array)


def _as_torch(array: np.ndarray) -> torch.Tensor:
    """A torch view of `array`; through bytes, because NumPy's bfloat16 is not
    torch's.
    """
    bytes_view = torch.from_numpy(array.reshape(-1).view(np.uint8))
    return bytes_view.view(compat.torch_dtype(array.dtype)).reshape(array.shape)


def _as_numpy(tensor: torch.Tensor, dtype: np.dtype) -> np.ndarray:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().view(dtype).reshape(tuple(tensor.shape))


def untie_differing_weights(model: Any, match: Match) -> None:
    """Separate weights that the model ties and of which the checkpoint has two values,
    as transformers does.

    Of weights that are stored twice with equal values only the first is left in
    `match`.
    """
    for names in parameter_groups(model):
        stored = [name for name in names if name in match.sources]
        for name in stored[1:]:
            if has_same_contents(match.sources[stored[0]], match.sources[name]):
                del match.sources[name]
                continue
            if find_owner(model, name)[0] is find_owner(model, stored[0])[0]:
                match.problems.append(
                    f"{stored[0]} and {name} differ in the checkpoint, and belong to one module of the model"
                )
                continue
            _logger.warning(
                "%s and %s are tied in the model and differ in the checkpoint: untied",
                stored[0],
                name,
            )
            put_parameter(model, [name], model.get_parameter(name).detach())
            getattr(model, "all_tied_weights_keys", {}).pop(name, None)


def has_same_contents(first: LazyTensor, second: LazyTensor, rows: int = 1024) -> bool:
    """Whether two stored tensors are equal bit for bit, compared `rows` rows at a
    time.
    """
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    with Reader() as reader:
        for block in _row_blocks(first.shape, rows):
            # Bytes, because a NaN does not equal itself.
            first_bytes = (
                first.read(reader, block, first.dtype).reshape(-1).view(np.uint8)
            )
            second_bytes = (
                second.read(reader, block, second.dtype).reshape(-1).view(np.uint8)
            )
            if not np.array_equal(first_bytes, second_bytes):
                return False
    return True


def _row_blocks(shape: tuple[int, ...], rows: int) -> Iterator[Index]:
    """Indices that together take all of an array, at most `rows` rows each."""
    if not shape:
        yield ()
        return
    length, *_ = shape
    for start in range(0, length, rows):
        yield (slice(start, min(start + rows, length)), *full_index(shape[1:]))


def find_mismatches(model: Any, match: Match, allow: Iterable[str]) -> list[str]:
    """A line for each kind of difference between checkpoint and model; tensors that
    `allow` names may go unused.
    """
    expected = model.state_dict()
    optional = absent_tensors(model)
    missing = [
        name for name in _absent_names(model, match) if not _matches_any(optional, name)
    ]
    unexpected = [name for name in match.unexpected if not _is_allowed(name, allow)]
    allowed = sorted(set(match.unexpected).difference(unexpected))
    if allowed:
        _logger.info("tensors that were allowed to go unused: %s", ", ".join(allowed))
    misshapen = [
        f"{name}: {list(source.shape)} in the checkpoint, {list(expected[name].shape)} in the model"
        for name, source in match.sources.items()
        if source.shape != tuple(expected[name].shape)
    ]
    mistyped = [
        f"{name}: {source.dtype} in the checkpoint, {expected[name].dtype} in the model"
        for name, source in match.sources.items()
        if source.dtype.kind in "biu" and expected[name].dtype.is_floating_point
    ]
    kinds = {
        "missing tensor": missing,
        "unexpected tensor": unexpected,
        "wrongly shaped tensor": misshapen,
        "tensor of the wrong type": mistyped,
    }
    return match.problems + [
        _format_names(kind, names) for kind, names in kinds.items() if names
    ]


def _format_names(kind: str, names: list[str]) -> str:
    plural = "s" if len(names) > 1 else ""
    lines = [f"{len(names)} {kind}{plural}:", *names[:_LISTED_NAMES]]
    if len(names) > _LISTED_NAMES:
        lines.append(f"and {len(names) - _LISTED_NAMES} more")
    return "\n    ".join(lines)


def _absent_names(model: Any, match: Match) -> list[str]:
    """Names of parameters and saved buffers that the checkpoint has no value for, the
    first name of tied weights.
    """
    known = match.sources.keys() | match.unknown
    absent_parameters = [
        names[0] for names in parameter_groups(model) if known.isdisjoint(names)
    ]
    # What the state dict has besides parameters are buffers.
    known |= {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return absent_parameters + [
        name for name in model.state_dict() if name not in known
    ]


def _is_allowed(name: str, allow: Iterable[str]) -> bool:
    # A name may have brackets, which would be a set of characters in a pattern.
    return name in allow or any(fnmatchcase(name, pattern) for pattern in allow)


def _matches_any(patterns: Iterable[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def initialize_absent(model: Any, match: Match) -> None:
    """Initialise parameters that may be absent from the checkpoint, as the model's
    constructor does.
    """
    state = model.state_dict()
    absent = [name for name in _absent_names(model, match) if state[name].is_meta]
    if not absent:
        return
    _logger.info(
        "not in the checkpoint, initialised as the model does: %s", ", ".join(absent)
    )
    for name, parameter in model.named_parameters():
        # initialize_weights leaves alone what has this mark.
        mark_initialized(parameter, name not in absent)
    absent_groups = [names for names in parameter_groups(model) if names[0] in absent]
    for names in absent_groups:
        put_parameter(
            model, names, torch.empty_like(model.get_parameter(names[0]), device="cpu")
        )
        for name in names:
            mark_initialized(model.get_submodule(name.rpartition(".")[0]), False)
    model.initialize_weights()
    for name in absent:
        match.sources[name] = _as_lazy(model.get_parameter(name))
