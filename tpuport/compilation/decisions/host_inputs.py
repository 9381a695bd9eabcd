"""Inputs whose values decide shapes: they stay on the host while a program is traced,
and are a part of its key.

The grid of each image's patches, sizes of images, masks of what is padding: libraries
cut and select by their values, which an argument of a program does not have while the
program is traced. The user names such inputs (`tpuport.compile(..., static=[...])`), or
they are found when the trace of a model of a library asks for a value.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import numpy as np
import torch

from tpuport import compat
from tpuport.libraries.library_classes import is_library_model

# Elements of the largest input that stays on the host unless it is named: a megapixel
# mask for each of 16 images. Its values are compared in each call.
MOST_ELEMENTS: Final = 2**24
# Of text, which is other text in each call.
_TOKENS: Final = frozenset({"input_ids", "decoder_input_ids", "labels"})
_ELEMENTS_OF_COUNTS: Final = 4


@contextlib.contextmanager
def values_known(function: Any, *, on_host: bool) -> Iterator[None]:
    """Traced. Let code decide by what is known of a call.

    Args:
        function: a model, a method of one, or any other function.
        on_host: whether tensors of the host are a part of the program.
    """
    with contextlib.ExitStack() as stack:
        if on_host:
            stack.enter_context(compat.host_tensors_as_constants())
        stack.enter_context(libraries_trusted(function))
        yield


@contextlib.contextmanager
def libraries_trusted(function: Any) -> Iterator[None]:
    """Traced. In the block, what models of libraries check, such as how many tokens are
    images, is taken for right, and what they select by a mask may be computed for all
    rows.

    Args:
        function: the function that runs. If it is a model of a library, this counts for
            all code, which may be a class derived from the library's.
    """
    is_model = is_library_model(getattr(function, "__self__", function))
    of = "all" if is_model else "libraries"
    with compat.lazy_masked_selections(of), compat.checks_trusted(of):
        yield


class Candidates(NamedTuple):
    """Names of the inputs whose values may decide shapes, in each list the largest
    first.

    Attributes:
        of_contents: integers and masks of images, recordings and the like.
        of_tokens: those with a value for each token of a text, such as its mask, which
            are others for another text.
        others: tokens themselves and large inputs, which stay on the host only if the
            user says so.
    """

    of_contents: list[str]
    of_tokens: list[str]
    others: list[str]


def find_candidates(tensors: Mapping[str, Any]) -> Candidates:
    """The integers and masks among the tensors of a call.

    Args:
        tensors: by name, each with shape and dtype.
    """
    texts = [
        tuple(tensor.shape)
        for name, tensor in tensors.items()
        if _last_part(name) in _TOKENS
    ]
    candidates = Candidates([], [], [])
    for name, tensor in sorted(
        tensors.items(), key=lambda item: -math.prod(item[1].shape)
    ):
        if not is_discrete(tensor):
            continue
        shape = tuple(tensor.shape)
        names = candidates.of_contents
        if _last_part(name) in _TOKENS or math.prod(shape) > MOST_ELEMENTS:
            names = candidates.others
        elif any(_is_of_tokens(shape, text) for text in texts):
            names = candidates.of_tokens
        names.append(name)
    return candidates


def is_discrete(tensor: Any) -> bool:
    """Whether a tensor or an array has integers or booleans."""
    dtype = tensor.dtype
    if not isinstance(dtype, torch.dtype):
        return np.dtype(dtype).kind in "biu"
    return not dtype.is_floating_point and not dtype.is_complex


def put_on_device(tensor: torch.Tensor) -> torch.Tensor:
    """Traced. The tensor on the device, or where its values are known to the trace."""
    if compat.takes_host_tensors() and is_discrete(tensor):
        return tensor
    return tensor if compat.is_ported(tensor) else compat.to_device(tensor)


def small_counts(weights: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The few integers that models have as buffers, such as the stride of a
    convolution: sizes follow from them. By name: jax gives a dictionary back in this
    order.
    """
    arrays = [
        array
        for named in weights
        for _, array in sorted(named.items())
        if isinstance(array, jax.Array)
    ]
    return [
        array
        for array in arrays
        if array.size <= _ELEMENTS_OF_COUNTS and is_discrete(array)
    ]


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def _is_of_tokens(shape: tuple[int, ...], text: tuple[int, ...]) -> bool:
    """Whether a tensor has values for each token [B, T]: [B, T, ...], or
    [axes, B, T].
    """
    return len(text) == 2 and text in (shape[:2], shape[-2:])


def find_needed(
    candidates: Candidates, can_trace: Callable[[Sequence[str]], bool]
) -> list[str]:
    """Which inputs have to stay on the host; none if the function cannot be traced with
    all of them there.

    Args:
        can_trace: whether the function can be traced with these inputs on the host.
            Without any it cannot.
    """
    contents, tokens, _ = candidates
    if contents and can_trace(contents):
        return _without_idle(contents, contents, can_trace)
    if tokens and can_trace(contents + tokens):
        return _without_idle(contents + tokens, tokens + contents, can_trace)
    return []


def _without_idle(
    names: Sequence[str],
    order: Sequence[str],
    can_trace: Callable[[Sequence[str]], bool],
) -> list[str]:
    """The names without those, tried in this order, that the function can be traced
    without.
    """
    needed = list(names)
    for name in order:
        fewer = [other for other in needed if other != name]
        if fewer and can_trace(fewer):
            needed = fewer
    return needed
