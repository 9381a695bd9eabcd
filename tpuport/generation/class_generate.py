"""The `generate` that a model's class defines, over a ported model.

Whisper's cuts long recordings into segments, CTC's calls the model once, BLIP-2's gives
its language model features of images. It runs as it is, on the host, over a view of the
model (`module_views`), where `super().generate` is tpuport's loop.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
from transformers import GenerationMixin

from tpuport import compat
from tpuport.base.mappings import only, without
from tpuport.compilation.model_calls import is_on_host
from tpuport.errors import PortError
from tpuport.generation.loop_choice import run_loop
from tpuport.generation.module_views import (
    calls_of_model,
    make_view,
    run_general_generate,
)
from tpuport.generation.request import on_host, read_transformers
from tpuport.generation.whisper_processors import detect_silence, read_processors

_general: Callable = vars(GenerationMixin)["generate"]


def run_class_generate(model: Any, arguments: Mapping[str, Any]) -> Any:
    """Run `generate` of a model's class with these arguments, by name; `inputs` is the
    first.
    """
    generate: Callable = type(model).generate
    first = [arguments["inputs"]] if "inputs" in arguments else []
    named = without(arguments, ("inputs",))
    calls = calls_of_model(model)
    if calls is None or is_on_host(model):
        return generate(model, *first, **named)
    if "kv_cache" in named:
        raise PortError(
            f"{type(model).__name__} has a generate of its own, which knows no kv_cache",
            where=f"kv_cache={named['kv_cache']!r}",
            fix="leave kv_cache out",
        )
    # How to compile a call that is a compiled program already.
    named.pop("compile_config", None)
    # An assistant is a model of the device.
    assistant = only(named, ("assistant_model",))
    first, named = jax.tree.map(
        on_host, (first, without(named, assistant)), is_leaf=compat.is_ported
    )
    if generate is _general:
        generate = run_general_generate
    return generate(make_view(model, calls), *first, **named, **assistant)


def enter_loop(model: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run tpuport's loop for code of a model's class that calls `super().generate`,
    with the arguments of transformers'.
    """
    bound = inspect.signature(_general).bind(model, *args, **kwargs).arguments
    named = without(bound, ("self", "kwargs")) | bound.get("kwargs", {})
    timestamps = None
    if named.get("logits_processor"):
        detect_silence(named["logits_processor"], named.get("decoder_input_ids"))
        processors = read_processors(named["logits_processor"])
        timestamps = processors.timestamps
        named["logits_processor"] = processors.on_host or None
        # An option whose processor a class makes itself, it says to be None.
        for name, value in processors.options.items():
            if named.get(name) is None:
                named[name] = value
    request = read_transformers(model, named)
    return run_loop(dataclasses.replace(request, timestamps=timestamps))
