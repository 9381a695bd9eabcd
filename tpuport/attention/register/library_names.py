"""The name "tpuport" in transformers' and diffusers' lists of ways to compute
attention, while somebody asks for it.
"""

import contextlib
import importlib.util
import os
import sys
import threading
from typing import Any, Final

import wrapt

from tpuport.internals import diffusers_internals
from tpuport.internals.diffusers_internals import ATTENTION_BACKENDS
from tpuport.internals.transformers_internals import CHOICE_OF_ATTENTION

_DIFFUSERS: Final = "diffusers.models.attention_dispatch"

_lock = threading.RLock()
_is_active = False
_has_import_hook = False
# What removes the name from the libraries in which `register_names` itself added it.
_registrations = contextlib.ExitStack()


def register_names() -> None:
    """Make the name known to transformers, and to diffusers as soon as that is
    imported. Idempotent.
    """
    global _is_active, _has_import_hook
    with _lock:
        _is_active = True
        _register_in_transformers()
        if _DIFFUSERS in sys.modules or _is_named_by_environment():
            _register_in_diffusers()
        elif not _has_import_hook:
            # A hook cannot be removed, so there is only ever one, and it asks whether
            # the name is still wanted.
            _has_import_hook = True
            wrapt.register_post_import_hook(_on_diffusers_import, _DIFFUSERS)


def unregister_names() -> None:
    """Undo `register_names`. Idempotent."""
    global _is_active
    with _lock:
        _is_active = False
        _registrations.close()


def _register_in_transformers() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from tpuport.attention.register.transformers_interface import (
        NAME,
        register_transformers,
        unregister_transformers,
    )

    # A name that the user registered is not ours to remove.
    if CHOICE_OF_ATTENTION.works() and NAME not in ALL_ATTENTION_FUNCTIONS:
        register_transformers()
        _registrations.callback(unregister_transformers)


def _register_in_diffusers() -> None:
    from tpuport.attention.register.diffusers_backend import (
        NAME,
        register_diffusers,
        unregister_diffusers,
    )

    # A backend that the user registered is not ours to remove. The check imports the
    # module of backends also where the environment names ours.
    if ATTENTION_BACKENDS.works() and not diffusers_internals.has_backend(NAME):
        register_diffusers()
        _registrations.callback(unregister_diffusers)


def _is_named_by_environment() -> bool:
    """Whether importing diffusers would fail because its environment variable names an
    unknown backend.
    """
    is_named = os.environ.get("DIFFUSERS_ATTN_BACKEND") == "tpuport"
    return is_named and importlib.util.find_spec("diffusers") is not None


def _on_diffusers_import(_: Any) -> None:
    with _lock:
        # Nobody may ask for it any more when diffusers is imported.
        if _is_active:
            _register_in_diffusers()
