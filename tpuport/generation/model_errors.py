"""Errors of a model's code in `generate`, explained wherever its programs are
traced.
"""

import contextlib
from typing import Any, Final

from tpuport import trace_errors
from tpuport.errors import PortError

# What models raise that ask for a cache of another kind, or for a value.
_MODEL_ERRORS: Final = (
    AttributeError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)


class NoLoop(PortError):
    """No program can repeat a model's steps, whatever it is asked for; transformers'
    own loop runs them.
    """


def explained_for_generate(decoder: Any) -> contextlib.AbstractContextManager:
    """Errors of the code of a decoder's model, explained."""
    return trace_errors.explained(
        decoder.model, catch=_is_of_model, alternative=decoder.alternative
    )


def _is_of_model(error: Exception) -> bool:
    return trace_errors.is_of_code(error) or isinstance(error, _MODEL_ERRORS)
