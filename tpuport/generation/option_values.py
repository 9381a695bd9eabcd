"""Values of generation options: numbers, token ids and strings, or a PortError with the
option's name.
"""

import contextlib
import math
import numbers
import operator
from collections.abc import Mapping
from typing import Any, Final

import torch
from transformers import GenerationConfig

from tpuport.errors import PortError

# Ids and counts are int32 on the device.
LARGEST_INT: Final = 2**31 - 1


def without_absent(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that say something to transformers.

    None is as good as nothing for what is not an option. As an option, it takes the
    place of what the model's generation config has.
    """
    fields = vars(GenerationConfig())
    return {
        name: value
        for name, value in arguments.items()
        if value is not None or name in fields
    }


def read_int(name: str, value: Any, default: int | None = 0) -> Any:
    """A whole number, `default` for None; PortError for anything else, such as 4.5, "4"
    and True.
    """
    match value:
        case None:
            return default
        case bool():
            pass  # to Python, True is an integer
        case float() if value.is_integer():
            return int(value)  # a computed length, such as 0.5 * limit
        case _:
            with contextlib.suppress(TypeError):
                return operator.index(value)
    raise PortError(f"{name} is not a whole number", where=f"{name}={value!r:.60}")


def check_kv_cache(kv_cache: Any) -> None:
    """PortError unless it is None or "int8"."""
    if kv_cache not in (None, "int8"):
        raise PortError(
            "keys and values are kept in the model's dtype or in int8",
            where=f"kv_cache={kv_cache!r:.60}",
            fix="pass kv_cache='int8', or leave it out",
        )


def read_bool(name: str, value: Any) -> bool:
    """True or False, False for None; PortError for anything else."""
    if not isinstance(value, bool | None):
        raise PortError(f"{name} is not True or False", where=f"{name}={value!r:.60}")
    return bool(value)


def read_float(name: str, value: Any, default: float | None = 0.0) -> Any:
    """A finite number, `default` for None; PortError for anything else."""
    if value is None:
        return default
    number = value
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        number = value.item()
    match number:
        case bool():
            pass
        case numbers.Real() if math.isfinite(number):
            return float(number)
    raise PortError(f"{name} is not a finite number", where=f"{name}={value!r:.60}")


def read_ids(name: str, value: Any) -> tuple[int, ...]:
    """Token ids, from one, several or a tensor of them; those that no token can have,
    such as -1, are dropped.
    """
    if value is None:
        return ()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple | set):
        value = (value,)
    ids = [read_int(name, element) for element in value]
    return tuple(token_id for token_id in ids if 0 <= token_id <= LARGEST_INT)


def read_strings(name: str, value: Any) -> tuple[str, ...]:
    """The strings, which may be one; PortError for anything else."""
    match value:
        case None:
            return ()
        case str() if value:
            return (value,)
        case list() | tuple() if all(isinstance(text, str) and text for text in value):
            return tuple(value)
    raise PortError(
        f"{name} is neither a string nor a list of strings",
        where=f"{name}={value!r:.60}",
    )
