"""transformers' `generate` on the host, over a ported model: a class's own, and the
general one.

Classes with a `generate` of their own run it as it is: Whisper's cuts long recordings
into segments, CTC's calls the model once, BLIP-2's gives its language model features of
images. It runs on a view of the ported model (`host_view`), where `super().generate` is
tpuport's loop, and so does the general one for models whose steps no program can
repeat: each step is a call of the model then.
"""

import functools
import inspect
import logging
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, NamedTuple

import torch
from transformers import GenerationMixin, LogitsProcessorList, StoppingCriteriaList
from transformers.utils.generic import ModelOutput

from tpuport.base.mappings import without
from tpuport.compilation import settings_key
from tpuport.errors import PortError
from tpuport.generation.cache_arguments import CACHE_NAMES
from tpuport.generation.host_view import (
    ModuleCalls,
    has_own_loop,
    make_view,
    run_general_generate,
)
from tpuport.generation.model_errors import NoLoop
from tpuport.generation.option_values import without_absent
from tpuport.libraries.library_classes import is_transformers_cache
from tpuport.trace_errors import CannotTrace

logger = logging.getLogger("tpuport")
# Its own types ask for a model.
_general: Any = GenerationMixin


def has_own_generate(model: Any) -> bool:
    """Whether a model's class defines a `generate`, or the loop behind it, in place of
    transformers' general one.
    """
    generate = getattr(type(model), "generate", None)
    is_general = generate is None or generate is _general.generate
    # Not every class with one, such as SpeechT5's, is derived from `GenerationMixin`.
    is_own = not is_general or has_own_loop(type(model))
    return isinstance(model, torch.nn.Module) and is_own


def run_own_generate(model: Any, calls: ModuleCalls, arguments: dict[str, Any]) -> Any:
    """Run `generate` of a ported model's class with these arguments, by name; `inputs`
    is the first.
    """
    if "kv_cache" in arguments:
        raise PortError(
            f"{type(model).__name__} has a generate of its own, which knows no kv_cache",
            where=f"kv_cache={arguments['kv_cache']!r}",
            fix="leave kv_cache out",
        )
    # How to compile a call that is a compiled program already.
    arguments.pop("compile_config", None)
    first = [arguments.pop("inputs")] if "inputs" in arguments else []
    own: Callable = type(model).generate
    if own is _general.generate:
        own = run_general_generate
    return own(make_view(model, calls), *first, **arguments)


def or_on_host(run: Callable) -> Callable:
    """A function with the arguments of `run_generate` that runs transformers' loop
    where there is none on the device.

    Args:
        run: runs the loop on the device.
    """
    signature = inspect.signature(run)

    @functools.wraps(run)
    def run_either(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        known = _without_loop.get(arguments["model"])
        if known is not None and known.is_about(arguments):
            return _run_general_generate(known.error, arguments)
        try:
            return run(*args, **kwargs)
        except (CannotTrace, NoLoop) as error:
            if not _can_run_on_host(arguments) or _is_of_compiler(error):
                raise
            first_error = error
        _warn_of_host(arguments["model"], first_error)
        output = _run_general_generate(first_error, arguments)
        _without_loop[arguments["model"]] = _LoopRefusal.of(first_error, arguments)
        return output

    return run_either


class _LoopRefusal(NamedTuple):
    """That a model has no loop on the device, so that this is not tried in each call.

    Attributes:
        error: says why.
        settings: of the model then; names: of the inputs.
    """

    error: PortError
    settings: Hashable
    names: frozenset[str]

    @classmethod
    def of(cls, error: PortError, arguments: Mapping[str, Any]) -> "_LoopRefusal":
        """The refusal of a call with these arguments."""
        # What it was raised from refers to frames, and these to arrays.
        error.__cause__ = error.__context__ = error.__traceback__ = None
        return cls(
            error, settings_key(arguments["model"]), frozenset(arguments["options"])
        )

    def is_about(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a call with these arguments would be refused too."""
        is_same = self.settings == settings_key(arguments["model"])
        return (
            is_same
            and self.names == frozenset(arguments["options"])
            and _can_run_on_host(arguments)
        )


_without_loop: weakref.WeakKeyDictionary[Any, _LoopRefusal] = (
    weakref.WeakKeyDictionary()
)
# What transformers' own loop does not know.
_OF_THE_DEVICE: Final = ("kv_cache", "share_prefix", "timestamps", "assistant_model")


def _can_run_on_host(arguments: Mapping[str, Any]) -> bool:
    """Whether transformers' loop takes the arguments, and the model's own calls are
    compiled.
    """
    is_list = isinstance(arguments["input_ids"], list)
    if is_list or any(arguments.get(name) for name in _OF_THE_DEVICE):
        return False
    return hasattr(vars(arguments["model"]).get("generate"), "module_calls")


def _is_of_compiler(error: PortError) -> bool:
    """Whether the model can be traced, so that a call of it would fail as well."""
    return isinstance(error, CannotTrace) and error.failure.kind == "compiler"


def _warn_of_host(model: Any, error: PortError) -> None:
    """Tell the user that there is no loop on the device, once for each model."""
    logger.warning(
        "generate runs transformers' own loop for %s, on the host, a compiled call for each token: %s",
        type(model).__name__, error.what,
    )  # fmt: skip


def _run_general_generate(error: PortError, arguments: Mapping[str, Any]) -> Any:
    """Run transformers' general `generate` on the host, a call of the model for each
    token.

    Args:
        error: why there is no loop on the device, which is raised if this one fails
            too.
        arguments: of `run_generate`.
    """
    model = arguments["model"]
    view = make_view(model, vars(model)["generate"].module_calls)
    try:
        output = run_general_generate(
            view, seed=arguments["seed"], **_of_transformers(arguments)
        )
    except Exception as host_error:
        # What the user can act on is why the usual way fails.
        raise error from host_error
    is_given = not CACHE_NAMES.isdisjoint(arguments["options"])
    if isinstance(output, ModelOutput) and not is_given:
        # As from the loop on the device, which donates its cache.
        for name, value in output.items():
            if is_transformers_cache(value):
                setattr(output, name, None)
    return output


def _of_transformers(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of transformers' `generate`."""
    named = without(arguments, ("model", "seed", "options"))
    named |= arguments["options"]
    prompt = named.pop("input_ids")
    if isinstance(prompt, Mapping):
        named = {**prompt, **without_absent(named)}
    else:
        named["inputs"] = prompt
    for name, cls in (
        ("logits_processor", LogitsProcessorList),
        ("stopping_criteria", StoppingCriteriaList),
    ):
        if named.get(name):
            named[name] = cls(named[name])
    ours = (*_OF_THE_DEVICE, "compile_config")
    return without(without_absent(named), ours)
