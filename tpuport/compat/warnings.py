"""Warnings of torchax and jax that are known to be harmless, filtered while tpuport is
enabled, each by its text.

Everything that is not listed here stays visible.
"""

import dataclasses
import logging
import re
import threading
import warnings
from typing import Any

logger = logging.getLogger("tpuport")


@dataclasses.dataclass(frozen=True)
class Harmless:
    """One filtered warning.

    Args:
        text: the whole text of the warning; `*` stands for one word or path that
            varies.
        category: its class.
        reason: why it can be ignored.
        module: a regular expression of the modules that it is filtered in; "" for all.
    """

    text: str
    category: type[Warning]
    reason: str
    module: str = ""

    @property
    def pattern(self) -> str:
        """Regular expression that matches the text and nothing longer or shorter."""
        return re.escape(self.text).replace(r"\*", r"[^\s()]+") + r"\Z"


# Modules that run what a model asks for; code that calls jax itself hears jax's own
# warning.
_BELOW_MODELS = r"(torchax|tpuport|jax\._src)(\.|\Z)"

HARMLESS = (
    Harmless(
        "Explicitly requested dtype int64 requested in * is not available, and will be truncated to dtype int32. "
        "To enable more dtypes, set the jax_enable_x64 configuration option or the JAX_ENABLE_X64 shell environment "
        "variable. See https://github.com/jax-ml/jax#current-gotchas for more.",
        UserWarning,
        "torch counts in int64, jax in int32 unless told otherwise; token ids and positions fit. Host tensors are "
        "checked for values that do not.",
    ),
    Harmless(
        "The given NumPy array is not writable, and PyTorch does not support non-writable tensors. This means writing "
        "to this tensor will result in undefined behavior. You may want to copy the array to protect its data or make "
        "it writable before converting it to a tensor. This type of warning will be suppressed for the rest of this "
        "program. (Triggered internally at *.)",
        UserWarning,
        "torchax looks at a jax array, which is read-only, through NumPy; nothing writes to the tensor it makes.",
    ),
    *(
        Harmless(
            f"Explicitly requested dtype {wide} requested in * is not available, and will be truncated to dtype "
            f"{narrow}. To enable more dtypes, set the jax_enable_x64 configuration option or the JAX_ENABLE_X64 shell "
            "environment variable. See https://github.com/jax-ml/jax#current-gotchas for more.",
            UserWarning,
            "tpuport's own warning says so with the line of the model that asks for it.",
            _BELOW_MODELS,
        )
        for wide, narrow in (("float64", "float32"), ("complex128", "complex64"))
    ),
)

_lock = threading.RLock()
_filters: list[Any] = []


def install() -> None:
    """Filter the warnings of `HARMLESS`, and put back a filter that a
    `warnings.catch_warnings` block dropped.
    """
    with _lock:
        if _filters and all(entry in warnings.filters for entry in _filters):
            return
        uninstall()
        for harmless in HARMLESS:
            warnings.filterwarnings(
                "ignore", harmless.pattern, harmless.category, harmless.module
            )
            _filters.append(warnings.filters[0])
            logger.debug("filtering %s: %s", harmless.category.__name__, harmless.text)
        logger.info("filtering %d harmless warnings", len(_filters))


def uninstall() -> None:
    """Make the warnings visible again, leaving every filter that is not ours."""
    with _lock:
        for entry in _filters:
            if entry in warnings.filters:
                warnings.filters.remove(entry)  # type: ignore[union-attr]
        _filters.clear()
        # Entering and leaving tells the warnings module that its filters changed; it
        # has no public call for it.
        with warnings.catch_warnings():
            pass


def refresh() -> None:
    """Put dropped filters back if they are meant to be there; does nothing
    otherwise.
    """
    if _filters:
        install()
