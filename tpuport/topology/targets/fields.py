"""Fields of configs that no model can be built with: named, in place of what a library says far below."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.topology.targets.configs import Found
from tpuport.trace_errors.error_kinds import first_line

# Numbers of something that a model has at least one of.
_COUNTS: Final = re.compile(
    r"(size|heads|layers|dims?|channels|experts|embeddings|embd|width|groups)$|^(n|d|num)_"
)


@contextlib.contextmanager
def told(found: Found, what: str) -> Iterator[None]:
    """Turn whatever a library's code raises inside, over the fields of a config, into a PortError that names them.

    Args:
        what: the beginning of the sentence: "transformers refuses the config".
    """
    try:
        yield
    except PortError as error:
        if error.fix is not None:
            raise
        raise PortError(error.what, where=error.where, fix=_fix(found.raw)) from error
    except Exception as error:
        kind = "" if type(error).__module__.startswith("huggingface_hub") else f"{type(error).__name__}: "
        raise PortError(
            f"{what}: {kind}{first_line(error)}", where=found.path, fix=_fix(found.raw)
        ) from error


def check_heads(config: Any, found: Found) -> None:
    """PortError unless the query heads of a language model can be shared out over its key/value heads."""
    heads, groups = (getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
    if (
        not (isinstance(heads, int) and isinstance(groups, int))
        or min(heads, groups) < 1
        or heads % groups == 0
    ):
        return
    raise PortError(
        f"num_attention_heads={heads} is no multiple of num_key_value_heads={groups}", where=found.path,
        fix="each key/value head serves as many query heads as the others: correct one of the two",
    )  # fmt: skip


def _fix(raw: Mapping[str, Any]) -> str:
    wrong = [f"{name} is {value!r}" for name, value in _wrong(raw)]
    if not wrong:
        return "correct the config: the model's class takes no such values"
    return f"{', '.join(wrong)}: a whole number above 0 is wanted"


def _wrong(raw: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers of something, at any depth, that are no whole numbers above 0."""
    for name, value in raw.items():
        if isinstance(value, Mapping):
            yield from _wrong(value, f"{above}{name}.")
        elif not _COUNTS.search(name) or isinstance(value, bool):
            continue
        elif (isinstance(value, int) and value < 1) or (
            isinstance(value, str) and value.strip("-").isdigit()
        ):
            yield f"{above}{name}", value
