"""The name "tpuport" in transformers' and diffusers' lists of ways to compute attention, while somebody asks for it."""

import importlib.util
import os
import sys
import threading
from typing import Any

import wrapt

_DIFFUSERS = "diffusers.models.attention_dispatch"

_lock = threading.RLock()
_wanted = False
_hooked = False
# Who was given the name by `give`; whoever had it before keeps it.
_given: set[str] = set()


def give() -> None:
    """Make the name known to transformers, and to diffusers as soon as that is imported. Idempotent."""
    global _wanted, _hooked
    with _lock:
        _wanted = True
        _give_transformers()
        if _DIFFUSERS in sys.modules or _named_by_environment():
            _give_diffusers()
        elif not _hooked:
            _hooked = True
            wrapt.register_post_import_hook(_imported, _DIFFUSERS)


def withdraw() -> None:
    """Take back what `give` did. Idempotent."""
    global _wanted
    with _lock:
        _wanted = False
        if "transformers" in _given:
            from tpuport.attention.register.transformers import unregister_transformers

            unregister_transformers()
        if "diffusers" in _given:
            from tpuport.attention.register.diffusers import unregister_diffusers

            unregister_diffusers()
        _given.clear()


def _give_transformers() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from tpuport.attention.register.transformers import NAME, register_transformers

    if NAME not in ALL_ATTENTION_FUNCTIONS:
        register_transformers()
        _given.add("transformers")


def _give_diffusers() -> None:
    from tpuport.attention.register.diffusers import NAME, register_diffusers

    backends = sys.modules.get(_DIFFUSERS)
    if backends is None or NAME not in [backend.value for backend in backends.AttentionBackendName]:
        register_diffusers()
        _given.add("diffusers")


def _named_by_environment() -> bool:
    """Whether diffusers would fail on the name when it is imported."""
    named = os.environ.get("DIFFUSERS_ATTN_BACKEND") == "tpuport"
    return named and importlib.util.find_spec("diffusers") is not None


def _imported(_: Any) -> None:
    with _lock:
        if _wanted:
            _give_diffusers()
