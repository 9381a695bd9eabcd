"""Methods of a ported pipeline that change its models: LoRA, IP-Adapter, textual
inversion, fused projections.

They are diffusers' own code for models of the host. So the models that one may change
are taken back to the host, the method runs, and the models are ported again as they
were, with what it has added; their programs are compiled once more. A method that only
sets attributes (`set_adapters`, `set_ip_adapter_scale`, `enable_freeu`) runs as it is:
what traced code reads is in the key of its program.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from tpuport.diffusion.mixed_devices import current_mode
from tpuport.internals.diffusers_internals import components_with_adapters

# How diffusers names the methods that read or write weights.
_WEIGHT_METHODS = ("load_", "unload_", "fuse_", "unfuse_", "delete_")
# Those of them that are about LoRA.
_LORA_NAMES = ("lora", "adapters")


def changes_weights(cls: type, name: str) -> bool:
    """Whether a pipeline's class has a method of this name that changes weights of its
    models.
    """
    return name.startswith(_WEIGHT_METHODS) and inspect.isfunction(
        inspect.getattr_static(cls, name)
    )


def changing_method(method: Callable) -> Callable:
    """Such a method for a ported pipeline, with the models on the host while it
    runs.
    """

    @functools.wraps(method)
    def change(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = vars(self).get("_tpuport")
        # A method that another one calls finds the models on the host.
        if state is None or current_mode() is not None:
            return method(self, *args, **kwargs)
        names = _changeable_components(self, method.__name__, state.components)
        state.take_back(self, names)
        try:
            return method(self, *args, **kwargs)
        finally:
            # Also if the method has failed half-way: the pipeline stays one that can be
            # called.
            state.port_again(self)

    return change


def _changeable_components(
    pipe: Any, method: str, components: Iterable[str]
) -> list[str]:
    """The names of the components that a method may change."""
    lora_components = components_with_adapters(type(pipe))
    is_of_lora = (
        any(word in method for word in _LORA_NAMES) and "ip_adapter" not in method
    )
    if is_of_lora and lora_components:
        return [name for name in components if name in lora_components]
    return list(components)
