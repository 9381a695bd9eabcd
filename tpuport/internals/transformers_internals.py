"""Private names of transformers: how a config keeps the attention that was chosen for
its model.
"""

from typing import Any, Final

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
    is_registered = name in AttentionInterface()
    choose_attention(config, name)
    is_chosen = config._attn_implementation == name == chosen_attention(config)
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
