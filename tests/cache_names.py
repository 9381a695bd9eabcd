"""What the installed transformers calls the cache among the arguments of a model, and in its output."""

import inspect

from transformers import LlamaForCausalLM

CACHE = next(
    name
    for name, parameter in inspect.signature(LlamaForCausalLM.forward).parameters.items()
    if "Cache" in str(parameter.annotation)
)
