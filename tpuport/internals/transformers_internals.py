"""Private names of transformers: the attention that was chosen for a model, the
parts of `generate`, and what a model's class says of its weights.
"""

import contextvars
import importlib.util
import inspect
from typing import Any, Final

import torch

from tpuport.internals.mechanism import Mechanism

# The property `_attn_implementation` does more than read and write: setting it goes on
# to the configs inside.
_CHOICE: Final = "_attn_implementation_internal"


def chosen_attention(config: Any) -> str | None:
    """The name of the attention that a config's model uses; None if none was chosen."""
    return getattr(config, _CHOICE, None)


def choose_attention(config: Any, name: str | None) -> None:
    """Let a config's model use the attention of this name."""
    setattr(config, _CHOICE, name)


def can_choose_attention(model: Any) -> bool:
    """Whether the attention of a model can be chosen; a model of another library has
    no such method.
    """
    return getattr(model, "_can_set_attn_implementation", lambda: False)()


def remove_attention(name: str) -> None:
    """Take a name out of transformers' tables of attention functions and masks, which
    have no method for it.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    for interface in (AttentionInterface, AttentionMaskInterface):
        interface._global_mapping.pop(name, None)


def _chooses_attention() -> bool:
    """Whether a name can be registered, chosen in a config, seen there by transformers,
    and removed.
    """
    from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel

    name, config = "tpuport_probe", PretrainedConfig()
    AttentionInterface.register(name, _chooses_attention)
    try:
        is_registered = name in AttentionInterface()
        choose_attention(config, name)
        is_chosen = config._attn_implementation == name == chosen_attention(config)
    finally:
        remove_attention(name)
    is_removed = name not in AttentionInterface()
    can_be_asked = callable(PreTrainedModel._can_set_attn_implementation)
    return is_registered and is_chosen and is_removed and can_be_asked


CHOICE_OF_ATTENTION: Final = Mechanism(
    "attention in transformers",
    "transformers",
    rests_on=f"config.{_CHOICE}, model._can_set_attn_implementation, AttentionInterface._global_mapping",
    without="models compute attention as they were built: the kernel serves those that call torch's "
    "scaled_dot_product_attention, the usual choice, and a model built with 'eager' computes all scores",
    probe=_chooses_attention,
)


# --- the weights of attention, where a caller asks for them ---


def recorded_outputs() -> dict[str, Any]:
    """What transformers' hooks record in the forward pass that runs, by name."""
    if not _has_recorder():
        return {}
    from transformers.utils.output_capturing import _active_collector

    return _active_collector.get() or {}


def _has_recorder() -> bool:
    # Earlier releases of transformers 5 passed the argument on to each layer.
    return importlib.util.find_spec("transformers.utils.output_capturing") is not None


RECORDED_OUTPUTS: Final = Mechanism(
    "recording of attention weights",
    "transformers",
    rests_on="transformers.utils.output_capturing._active_collector",
    without="a model that was built with 'eager' computes its own attention in every call, as for its weights",
    # Outside of the forward pass that may be running, which records something.
    probe=lambda: contextvars.Context().run(recorded_outputs) == {},
)


# --- generation ---

# Methods of transformers' `generate` that the loop on the device stands for.
_LOOP_METHODS: Final = ("_sample", "_get_logits_processor", "_prepare_model_inputs")
_INPUT_METHODS: Final = (
    "_expand_inputs_for_generation", "_update_model_kwargs_for_generation", "_supports_default_dynamic_cache",
)  # fmt: skip


def has_loop_of_its_own(cls: type) -> bool:
    """Whether a class of models replaces a method of transformers' loop."""
    from transformers import GenerationMixin

    general = {name: getattr(GenerationMixin, name) for name in _LOOP_METHODS}
    return any(getattr(cls, name, step) is not step for name, step in general.items())


def counts_positions_itself(cls: type) -> bool:
    """Whether a class of models counts positions by more than its tokens."""
    from transformers import GenerationMixin

    general = GenerationMixin._prepare_position_ids_for_generation
    return cls._prepare_position_ids_for_generation is not general  # type: ignore[attr-defined]


def prepare_positions(
    model: Any, tokens: torch.Tensor, arguments: dict[str, Any]
) -> torch.Tensor:
    """The positions of a prompt's tokens, as the model counts them."""
    return model._prepare_position_ids_for_generation(tokens, arguments)


def expand_inputs(model: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A prompt's inputs, each repeated for several sequences."""
    return model._expand_inputs_for_generation(**options)


def update_arguments(
    model: Any, output: Any, arguments: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of the next call after an output."""
    return model._update_model_kwargs_for_generation(output, arguments)


def takes_general_cache(model: Any) -> bool:
    """Whether a model works with transformers' general caches."""
    return model._supports_default_dynamic_cache()


def compiles_whole(cls: type) -> bool:
    """Whether transformers compiles a class of models without graph breaks."""
    return getattr(cls, "_can_compile_fullgraph", False)


def _has_methods_of_generate() -> bool:
    from transformers import GenerationMixin

    return all(
        hasattr(GenerationMixin, name) for name in _LOOP_METHODS + _INPUT_METHODS
    )


GENERATE: Final = Mechanism(
    "generation on the device",
    "transformers",
    rests_on=f"GenerationMixin: {', '.join(_LOOP_METHODS + _INPUT_METHODS)}",
    without="transformers' own loop runs on the host and calls compiled programs: the same tokens, more slowly",
    probe=_has_methods_of_generate,
)


def _prepares_positions() -> bool:
    from transformers import GenerationMixin

    return callable(GenerationMixin._prepare_position_ids_for_generation)


POSITIONS_OF_IMAGES: Final = Mechanism(
    "positions of images in prompts",
    "transformers",
    rests_on="GenerationMixin._prepare_position_ids_for_generation",
    without="generate with images or videos is an error",
    probe=_prepares_positions,
    fix="pip install --upgrade transformers",
)


# --- weights ---


def insisted_dtypes(model: Any, dtype: torch.dtype) -> dict[str, torch.dtype] | None:
    """The dtypes that a model insists on if it is loaded in another, by patterns of
    names; None for a model of another library.
    """
    if not _is_of_transformers(model) or not INSISTED_DTYPES.works():
        return None
    return model._get_dtype_plan(dtype)


def _knows_insisted_dtypes() -> bool:
    from transformers import PreTrainedModel

    return callable(PreTrainedModel._get_dtype_plan)


INSISTED_DTYPES: Final = Mechanism(
    "dtypes that models insist on",
    "transformers",
    rests_on="PreTrainedModel._get_dtype_plan",
    without="weights are loaded in the dtype that was asked for, but for modules that _keep_in_fp32_modules names",
    probe=_knows_insisted_dtypes,
)


def _is_of_transformers(model: Any) -> bool:
    return any(
        cls.__module__.partition(".")[0] == "transformers" for cls in type(model).mro()
    )


def unused_tensors(model: Any) -> list[str]:
    """Patterns of tensors in a checkpoint that a model does without, of either
    library.
    """
    return list(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())


def absent_tensors(model: Any) -> list[str]:
    """Patterns of a model's tensors that its checkpoint may lack."""
    return list(getattr(model, "_keys_to_ignore_on_load_missing", None) or ())


def mark_initialized(part: Any, is_initialized: bool) -> None:
    """Let `initialize_weights` leave a parameter or module alone, or not."""
    part._is_hf_initialized = is_initialized


def note_conversions(model: Any, conversions: list[Any]) -> None:
    """Let `save_pretrained` write the form that a checkpoint had."""
    model._weight_conversions = conversions


def expert_plan(model: Any) -> dict[str, Any]:
    """The plan by which a model divides its experts; transformers 5.0 has no public
    name for it.
    """
    return getattr(model, "ep_plan", None) or getattr(model, "_ep_plan", None) or {}


# --- generation ---


def infers_encoder_masks() -> bool:
    """Whether `generate` makes a mask of padding for an encoder-decoder, as it does for
    decoders: before transformers 5.2, which lacks this method too.
    """
    from transformers import GenerationMixin

    return not hasattr(GenerationMixin, "_prepare_position_ids_for_generation")


def penalizes_padding() -> bool:
    """Whether padding counts for the repetition penalty in `generate`: before
    transformers 5.23, whose processor cannot be told how long it is for each row.
    """
    from transformers import RepetitionPenaltyLogitsProcessor

    parameters = inspect.signature(RepetitionPenaltyLogitsProcessor).parameters
    return "Tensor" not in str(parameters["prompt_ignore_length"].annotation)


# --- classes ---


def classes_by_config(cls: Any) -> Any:
    """The classes of models that an auto class makes, by the class of a config; None
    for any other class.
    """
    return getattr(cls, "_model_mapping", None)


def builder(cls: Any) -> Any:
    """What makes a model with random weights from a config; None for an auto class and
    for a class of another library, whose `from_config` does that.
    """
    return getattr(cls, "_from_config", None)


def decides_by_probability(processor: Any) -> bool:
    """Whether Whisper's processor of timestamps forces one that is likelier than all
    text.
    """
    return processor._detect_timestamp_from_logprob


# Attributes of models and modules that decide nothing: notes of hooks and of
# torch.compile, and what transformers looks up once for each class, in the first call.
BOOKKEEPING: Final = frozenset({
    "_output_capturing_hooks_installed", "_is_torch_compile", "_can_set_attn_implementation_cached_value",
    "_can_set_experts_implementation_cached_value",
})  # fmt: skip
