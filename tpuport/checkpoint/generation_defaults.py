"""The generation defaults that are saved beside weights: checked before anything is
loaded.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.libraries.config_values import is_whole, name_wrong_fields, read_json

FILE: Final = "generation_config.json"

Check = Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return is_whole(value) or isinstance(value, float)


def _is_token(value: Any) -> bool:
    return is_whole(value) or (isinstance(value, list) and all(map(is_whole, value)))


_COUNT: Final = ("a whole number above 0", lambda value: is_whole(value) and value > 0)
_LENGTH: Final = (
    "a whole number from 0 up",
    lambda value: is_whole(value) and value >= 0,
)
_SHARE: Final = (
    "a number from 0 to 1",
    lambda value: _is_number(value) and 0 <= value <= 1,
)
_TOKEN: Final = ("a token's number, or a list of them", _is_token)
_PADDING: Final = ("a token's number", is_whole)
# What a field must be, for people, and whether a value is it. Null stands for no
# default.
_FIELDS: Final[Mapping[str, tuple[str, Check]]] = {
    "bos_token_id": _TOKEN,
    "decoder_start_token_id": _TOKEN,
    "do_sample": ("true or false", lambda value: isinstance(value, bool)),
    "eos_token_id": _TOKEN,
    "max_length": _COUNT,
    "max_new_tokens": _COUNT,
    "min_length": _LENGTH,
    "min_p": _SHARE,
    "num_beams": _COUNT,
    "num_return_sequences": _COUNT,
    "pad_token_id": _PADDING,
    "repetition_penalty": (
        "a number above 0",
        lambda value: _is_number(value) and value > 0,
    ),
    "temperature": (
        "a number from 0 up",
        lambda value: _is_number(value) and value >= 0,
    ),
    "top_k": _LENGTH,
    "top_p": _SHARE,
}


def read_generation_config(directory: Path) -> Any:
    """transformers' GenerationConfig of a checkpoint; None if it has none.

    Raises:
        PortError: the file cannot be read, or a value is not one that the field can
            have.
    """
    path = directory / FILE
    # A link that leads nowhere is not nothing.
    if not os.path.lexists(path):
        return None
    raw = read_json(
        path,
        fix="correct the file, or remove it: the defaults are then transformers' own",
    )
    problems = list(_wrong_values(raw))
    if problems:
        raise PortError(
            "\n  - ".join(
                ["the generation defaults have values that cannot be used:", *problems]
            ),
            where=str(path),
            fix="correct these fields, or remove them from the file",
        )
    from transformers import GenerationConfig

    with name_wrong_fields(
        raw, str(path), "transformers refuses the generation defaults"
    ):
        return GenerationConfig.from_pretrained(directory, local_files_only=True)


def _wrong_values(raw: Mapping[str, Any]) -> Iterator[str]:
    for name, (kind, is_right) in _FIELDS.items():
        value = raw.get(name)
        if value is not None and not is_right(value):
            yield f"{name} is {value!r:.60}, and not {kind}"
