"""Private names of diffusers: its registry of attention backends, how schedulers count
their steps, and what pipelines and their parts keep.
"""

import enum
import gc
import importlib
import inspect
import operator
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

from tpuport.internals.mechanism import Mechanism

_MODULE: Final = "diffusers.models.attention_dispatch"
_CONSTANTS: Final = "diffusers.utils.constants"
_CHOOSING_VARIABLE: Final = "DIFFUSERS_ATTN_BACKEND"
_REGISTRY_TABLES: Final = ("_backends", "_constraints", "_supported_arg_names")
# What registering reads and changes, by its path in the module of backends.
_DICTIONARIES: Final = (
    "AttentionBackendName._member_map_",
    "AttentionBackendName._value2member_map_",
    *(f"_AttentionBackendRegistry.{table}" for table in _REGISTRY_TABLES),
)
_ATTRIBUTES: Final = (
    "_AttentionBackendRegistry.register",
    "_AttentionBackendRegistry._active_backend",
)
_ARGUMENTS: Final = {
    "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa",
}  # fmt: skip


class _EveryName(frozenset):
    """Contains every name: diffusers silently drops the arguments whose names a backend
    does not list.
    """

    def __contains__(self, _: object) -> bool:
        return True


def add_backend(name: str, attention: Callable[..., Any]) -> None:
    """Add a backend to diffusers' Enum of them and to the tables of its registry.

    Args:
        name: of the backend; its member of the Enum has it in capitals.
        attention: takes what diffusers passes to its own backends.
    """
    module = import_backends(name)
    names, registry = module.AttentionBackendName, module._AttentionBackendRegistry
    # An Enum cannot be extended officially; this is what its metaclass does for each
    # member.
    member = str.__new__(names, name)
    member._name_, member._value_ = name.upper(), name
    member.__objclass__, member._sort_order_ = names, len(names._member_names_)
    names._member_names_.append(member._name_)
    names._member_map_[member._name_] = names._value2member_map_[name] = member
    type.__setattr__(names, member._name_, member)
    registry.register(member)(attention)
    registry._supported_arg_names[member] = _EveryName()
    if os.environ.get(_CHOOSING_VARIABLE) == name:
        registry._active_backend = member


def has_backend(name: str) -> bool:
    """Whether diffusers has been imported and knows the backend."""
    module = sys.modules.get(_MODULE)
    return (
        module is not None and name.upper() in module.AttentionBackendName.__members__
    )


def remove_backend(name: str) -> None:
    """Take a backend out again; what had chosen it returns to diffusers' default."""
    module: Any = sys.modules[_MODULE]
    names, registry = module.AttentionBackendName, module._AttentionBackendRegistry
    member = names[name.upper()]
    if registry._active_backend is member:
        registry._active_backend = names.NATIVE
    for table in _REGISTRY_TABLES:
        getattr(registry, table).pop(member, None)
    type.__delattr__(names, member._name_)
    names._member_names_.remove(member._name_)
    del names._member_map_[member._name_], names._value2member_map_[name]
    remaining = weakref.ref(member)
    del member
    # Looking for the processors takes a third of a second, and there are rarely any.
    if remaining() is not None:
        _reset_processors(remaining())


def _reset_processors(member: Any) -> None:
    """Let every attention processor that had chosen the backend choose none."""
    # Nothing lists the processors, but each of them refers to the member.
    for holder in gc.get_referrers(member):
        # The referrer is the processor, or the dict of its attributes if Python has
        # made one.
        attributes = getattr(holder, "__dict__", holder)
        if (
            isinstance(attributes, dict)
            and attributes.get("_attention_backend") is member
        ):
            attributes["_attention_backend"] = None


def native_attention(*args: Any) -> Any:
    """Call diffusers' own backend, which calls torch's."""
    module: Any = importlib.import_module(_MODULE)
    native = module.AttentionBackendName.NATIVE
    return module._AttentionBackendRegistry._backends[native](*args)


def import_backends(chosen: str) -> Any:
    """diffusers' module of backends, even if the environment names a backend that it
    does not know yet.

    Args:
        chosen: the name that the environment may have.
    """
    if _MODULE in sys.modules or os.environ.get(_CHOOSING_VARIABLE) != chosen:
        return importlib.import_module(_MODULE)
    constants: Any = importlib.import_module(_CONSTANTS)
    # The import reads this name, and fails if it knows no such backend.
    setattr(constants, _CHOOSING_VARIABLE, "native")
    try:
        return importlib.import_module(_MODULE)
    finally:
        setattr(constants, _CHOOSING_VARIABLE, chosen)


def _keeps_backends_as_known() -> bool:
    """Whether the backends are kept in the form that `add_backend` extends."""
    module = import_backends("tpuport")
    native = module.AttentionBackendName.NATIVE
    operator.attrgetter(*_ATTRIBUTES)(module)
    tables = operator.attrgetter(*_DICTIONARIES)(module)
    arguments = inspect.signature(module.dispatch_attention_fn).parameters.keys()
    return (
        isinstance(native, str)
        and isinstance(native, enum.Enum)
        and arguments >= _ARGUMENTS
        and all(isinstance(table, dict) for table in tables)
    )


ATTENTION_BACKENDS: Final = Mechanism(
    "attention backend of diffusers",
    "diffusers",
    rests_on="diffusers.models.attention_dispatch._AttentionBackendRegistry, and the tables of an Enum",
    without="there is no backend 'tpuport' to choose; the 'native' one, which models use by default, calls torch's "
    "scaled_dot_product_attention, which the kernel serves",
    probe=_keeps_backends_as_known,
    fix="leave set_attention_backend out, or pip install 'diffusers>=0.36,<0.43'",
)


# --- schedulers ---


def counts_steps(scheduler: Any) -> bool:
    """Whether a scheduler counts its steps; others find them by the timestep."""
    return hasattr(scheduler, "_step_index")


def set_step_count(scheduler: Any, index: int) -> None:
    """Let a scheduler that counts its steps go on with this one."""
    scheduler._step_index = index


def start_at(scheduler: Any, index: int) -> None:
    """Let the first step of a scheduler that counts them be this one."""
    scheduler._step_index = scheduler._begin_index = index


def find_first_step(scheduler: Any, timestep: Any) -> None:
    """Set the count of a scheduler that has none yet, as its own step does."""
    if hasattr(scheduler, "_init_step_index"):
        scheduler._init_step_index(timestep)
    elif scheduler.begin_index is not None:
        scheduler._step_index = scheduler.begin_index
    else:
        scheduler._step_index = scheduler.index_for_timestep(timestep)


def has_threshold(scheduler: Any) -> bool:
    """Whether a scheduler has a method that bounds a sample by its quantiles."""
    return hasattr(scheduler, "_threshold_sample")


def bound_by_threshold(scheduler: Any, sample: Any) -> Any:
    """What the scheduler's class bounds a sample to."""
    return type(scheduler)._threshold_sample(scheduler, sample)


def replace_threshold(scheduler: Any, function: Callable[[Any], Any]) -> None:
    """Let a scheduler bound samples by another function."""
    scheduler._threshold_sample = function


def _counts_as_known() -> bool:
    from diffusers.schedulers.scheduling_flow_match_euler_discrete import (
        FlowMatchEulerDiscreteScheduler,
    )

    scheduler: Any = FlowMatchEulerDiscreteScheduler(num_train_timesteps=4)
    scheduler.set_timesteps(2)
    counts = [scheduler.step_index]
    is_counting = counts_steps(scheduler)
    find_first_step(scheduler, scheduler.timesteps[0])
    counts.append(scheduler.step_index)
    set_step_count(scheduler, 1)
    counts.append(scheduler.step_index)
    scheduler.set_begin_index(1)
    return is_counting and counts == [None, 0, 1] and scheduler._begin_index == 1


STEPS_ON_DEVICE: Final = Mechanism(
    "steps of schedulers on the device",
    "diffusers",
    rests_on="scheduler._step_index, _begin_index and _init_step_index",
    without="schedulers run on the host: the same results, but each step waits for the sample and sends it back",
    probe=_counts_as_known,
)


# --- pipelines and their parts ---


def progress_bar_options(pipeline: Any) -> dict[str, Any]:
    """What a user has set for a pipeline's progress bar."""
    return getattr(pipeline, "_progress_bar_config", {})


def components_with_adapters(cls: type) -> Any:
    """The names of the components that a pipeline loads LoRA weights to; None if its
    class does not say.
    """
    return getattr(cls, "_lora_loadable_modules", None)


def hook_names(module: Any) -> list[str]:
    """The names of the hooks that diffusers has put on a module."""
    registry = vars(module).get("_diffusers_hook")
    return list(getattr(registry, "hooks", None) or ())


def condition_identifier(guider: Any) -> str:
    """The attribute of a guider's condition that says which one it is."""
    return guider._identifier_key


def plan_of_class(model: Any) -> dict[str, Any]:
    """The tensor-parallel plan of a model's class; empty for most."""
    return getattr(model, "_tp_plan", None) or {}


def rename_tensors(model: Any, tensors: dict[str, Any]) -> None:
    """Give the tensors of a checkpoint the names that they have in this release."""
    model._fix_state_dict_keys_on_load(tensors)


def modules_in_float32(model: Any) -> frozenset[str]:
    """The modules of a model that lose too much precision in 16 bits."""
    return frozenset(getattr(model, "_keep_in_fp32_modules", None) or ())
