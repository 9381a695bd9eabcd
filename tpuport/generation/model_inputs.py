"""What `generate` passes on to a model beside its token ids: audio features, images,
masks, and plain values, by their names.

The names are those in the model's signature; a decoder's class says which of them its
models take (`Decoder.input_names`). All others are options of the generation. The
values are read on the host, and become arguments of the prompt's program, so that other
values compile nothing; plain ones become a part of its key.
"""

import dataclasses
import inspect
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

import jax
import numpy as np
import torch
from transformers import GenerationConfig

from tpuport import compat
from tpuport.base.mappings import only, without, without_nones
from tpuport.errors import PortError
from tpuport.generation.cache_arguments import CACHE_NAMES
from tpuport.generation.forward_signature import forward_parameters
from tpuport.generation.model_errors import NoLoop
from tpuport.generation.option_values import without_absent
from tpuport.objects.state import HostInput
from tpuport.objects.static_values import exact_key

# `generate` makes these itself; others ask for more results, which it does not return.
_MADE_HERE: Final = CACHE_NAMES | frozenset(
    "use_cache cache_position labels return_dict logits_to_keep output_attentions "
    "output_hidden_states output_router_logits return_loss".split()
)
_OPTIONS: Final = frozenset(vars(GenerationConfig()))


def input_names(parameters: Mapping[str, Any]) -> frozenset[str]:
    """The names in a signature that may be inputs of a model in `generate`."""
    return frozenset(parameters) - _MADE_HERE - _OPTIONS - {"kwargs", "self"}


def split_inputs(
    names: frozenset[str], arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Further inputs of the model, and options of the generation. An input that is None
    is left out.
    """
    return without_nones(only(arguments, names)), without(arguments, names)


def check_passed_on(model: Any, options: Mapping[str, Any]) -> None:
    """NoLoop for inputs of a model among the options: what the loop on the device does
    not pass on, such as embeddings in place of token ids.
    """
    has_forward = hasattr(model, "forward")
    taken = input_names(forward_parameters(model)) if has_forward else ()
    unread = sorted(without_absent(options).keys() & set(taken))
    if unread:
        raise NoLoop(
            f"the loop on the device does not pass on the model's {', '.join(unread)}",
            where=f"{type(model).__name__}.generate",
            fix="leave them out",
        )


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Setting:
    """A plain value among the inputs that the model's code reads, such as
    `interpolate_pos_encoding=True`: a part of the program's key.

    Attributes:
        key: tells 1 from True; value: as the caller gave it.
    """

    key: Hashable
    value: Any = dataclasses.field(compare=False)


def read_inputs(inputs: Mapping[str, Any], *modules: Any) -> dict[str, Any]:
    """The inputs on the host, by the signatures of the modules that read them: an array
    each, or a `Setting`; PortError for what is neither.
    """
    return {
        name: Setting(exact_key(value), value)
        if _is_setting(name, value, modules)
        else read_array(value, name)
        for name, value in inputs.items()
    }


def _is_setting(name: str, value: Any, modules: Iterable[Any]) -> bool:
    """Whether an input is a plain value, and not one in place of a tensor."""
    signatures = [inspect.signature(module.forward).parameters for module in modules]
    annotations = [
        str(parameters[name].annotation)
        for parameters in signatures
        if name in parameters
    ]
    is_plain = isinstance(value, bool | int | float | str)
    return is_plain and not any("Tensor" in annotation for annotation in annotations)


def arrays_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that are no settings."""
    return {
        name: value for name, value in inputs.items() if not isinstance(value, Setting)
    }


def as_argument(value: Any) -> Any:
    """Traced. An input of a program as the model's code gets it."""
    match value:
        case HostInput():
            return value.as_tensor()
        case Setting():
            return value.value
    return compat.as_torch(value)


def read_array(value: Any, name: str) -> np.ndarray:
    """The value of an input [batch, ...] on the host, 64-bit types narrowed.

    PortError unless it is a tensor, or can be converted to one, and has at least one
    row.
    """
    try:
        array = _on_host(value)
    except (TypeError, ValueError, RuntimeError):
        raise PortError(
            f"{name} is not a tensor, and cannot be converted to one",
            where=f"{name}={value!r:.60}",
            fix="give what the model's processor or tokenizer returns, with return_tensors='pt'",
        ) from None
    if not array.ndim or not array.size:
        raise PortError(
            f"{name} has no rows", where=f"{name}: {array.dtype}{array.shape}"
        )
    return array


def _on_host(value: Any) -> np.ndarray:
    if compat.is_ported(value):
        return np.asarray(compat.as_jax(value))
    return compat.to_numpy(torch.as_tensor(value))


def check_rows(arrays: Mapping[str, np.ndarray], rows: int, main_name: str) -> None:
    """PortError for an input whose rows are not those of the main input, a `NoLoop` of
    images.
    """
    for name, array in arrays.items():
        if array.shape[0] != rows:
            # Of images there may be several for each row, which the model itself
            # counts.
            error = NoLoop if name == "pixel_values" else PortError
            raise error(
                f"{name} has {array.shape[0]} rows, {main_name} has {rows}",
                where=f"{name}: {array.dtype}{array.shape}",
                fix="give every input of the model a row for each row of the batch",
            )


def vocabulary_size(model: Any) -> int:
    """How many tokens the model has an embedding of, which its config may tell wrongly
    once it has been resized.

    Raises:
        PortError: the model does not say which its embedding is, as some that read and
            write sound.
    """
    try:
        weight = getattr(model.get_input_embeddings(), "weight", None)
    except NotImplementedError:
        weight = None
    if weight is None:
        name = type(model).__name__
        raise NoLoop(
            f"{name} does not say which its token embedding is, so that token ids cannot be checked",
            where=f"{name}.get_input_embeddings",
            fix="use transformers' own generate, after tpuport.to_cpu(model)",
        )
    return weight.shape[0]


def prepare_inputs(model: Any, tokens: jax.Array, **inputs: Any) -> dict[str, Any]:
    """Traced. What the model's own `prepare_inputs_for_generation` makes of tokens
    [B, n] and further inputs.

    PortError if it adds tokens, for which the loop's buffers have no columns.
    """
    prepared = model.prepare_inputs_for_generation(compat.wrap(tokens), **inputs)
    if tuple(prepared["input_ids"].shape) != tokens.shape:
        raise NoLoop(
            f"{type(model).__name__} puts tokens of its own behind the last one, where a buffer of fixed shape has "
            "columns to come",
            where=f"{type(model).__name__}.prepare_inputs_for_generation",
            fix="use transformers' own generate, after tpuport.to_cpu(model)",
        )
    return prepared
