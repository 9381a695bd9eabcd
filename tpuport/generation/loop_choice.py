"""Which loop a request gets: that on the device, or transformers' own on the host.

The latter is for models whose steps no program can repeat: transformers' general
`generate` runs over a view of the model (`module_views`), a call for each token.
"""

import logging
import weakref
from collections.abc import Hashable
from typing import Any, NamedTuple

from transformers.utils.generic import ModelOutput

from tpuport.compilation import settings_key
from tpuport.errors import PortError
from tpuport.generation.cache_arguments import CACHE_NAMES
from tpuport.generation.device_loop import run_on_device
from tpuport.generation.model_errors import NoLoop
from tpuport.generation.module_views import (
    calls_of_model,
    make_view,
    run_general_generate,
)
from tpuport.generation.request import Request
from tpuport.libraries.library_classes import is_transformers_cache
from tpuport.trace_errors import CannotTrace

logger = logging.getLogger("tpuport")


def run_loop(request: Request) -> Any:
    """Generate with the loop on the device, or with transformers' own where there is
    none.
    """
    model = request.model
    refusal = _refusals.get(model)
    if refusal is not None and refusal.is_about(request):
        return _generate_on_host(request, refusal.error)
    try:
        return run_on_device(request)
    except (CannotTrace, NoLoop) as error:
        if not _can_generate_on_host(request) or _is_of_compiler(error):
            raise
        first_error = error
    logger.warning(
        "generate runs transformers' own loop for %s, on the host, a compiled call for each token: %s",
        type(model).__name__, first_error.what,
    )  # fmt: skip
    output = _generate_on_host(request, first_error)
    # What it was raised from refers to frames, and these to arrays.
    first_error.__cause__ = first_error.__context__ = first_error.__traceback__ = None
    _refusals[model] = _Refusal(
        first_error, settings_key(model), frozenset(request.options)
    )
    return output


class _Refusal(NamedTuple):
    """That a model has no loop on the device, so that this is not tried in each call.

    Attributes:
        error: says why.
        settings: of the model then; names: of the options and inputs.
    """

    error: PortError
    settings: Hashable
    names: frozenset[str]

    def is_about(self, request: Request) -> bool:
        """Whether a request would be refused too."""
        is_same = self.settings == settings_key(request.model)
        has_names = self.names == frozenset(request.options)
        return is_same and has_names and _can_generate_on_host(request)


_refusals: weakref.WeakKeyDictionary[Any, _Refusal] = weakref.WeakKeyDictionary()


def _can_generate_on_host(request: Request) -> bool:
    """Whether transformers' loop takes the request, and the model's own calls are
    compiled.
    """
    of_the_device = (
        request.kv_cache
        or request.share_prefix
        or request.timestamps
        or request.assistant_model
    )
    if of_the_device or isinstance(request.input_ids, list):
        return False
    return calls_of_model(request.model) is not None


def _is_of_compiler(error: PortError) -> bool:
    """Whether the model can be traced, so that a call of it would fail as well."""
    return isinstance(error, CannotTrace) and error.failure.kind == "compiler"


def _generate_on_host(request: Request, error: PortError) -> Any:
    """Run transformers' general `generate`, a call of the model for each token.

    Args:
        error: why there is no loop on the device, which is raised if this one fails
            too.
    """
    calls = calls_of_model(request.model)
    assert calls is not None
    view = make_view(request.model, calls)
    try:
        output = run_general_generate(view, **request.as_transformers())
    except Exception as host_error:
        # What the user can act on is why the usual way fails.
        raise error from host_error
    is_given = not CACHE_NAMES.isdisjoint(request.options)
    if isinstance(output, ModelOutput) and not is_given:
        # As from the loop on the device, which donates its cache.
        for name, value in output.items():
            if is_transformers_cache(value):
                setattr(output, name, None)
    return output
