"""`Request`: what one call of `generate` asks for, in one object."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from tpuport import compat
from tpuport.base.mappings import only, without
from tpuport.errors import PortError
from tpuport.generation.generation_options import merge_configs
from tpuport.generation.option_values import without_absent
from tpuport.generation.whisper_processors import TimestampRules

# torch's generators give 64 bits; a seed has to be positive.
_SEEDS: Final = 2**31
_LISTS: Final = {
    "logits_processor": LogitsProcessorList,
    "stopping_criteria": StoppingCriteriaList,
}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Request:
    """What a call asks for, as the user gave it; `tpuport.generate` explains each.

    Attributes:
        options: what has no name here: fields of GenerationConfig, a cache, and inputs
            of the model.
        timestamps: the rules of Whisper's `generate`.
    """

    model: Any
    input_ids: Any = None
    attention_mask: Any = None
    generation_config: GenerationConfig | None = None
    streamer: Any = None
    seed: int = 0
    stopping_criteria: Sequence[Any] | None = None
    tokenizer: Any = None
    logits_processor: Sequence[Any] | None = None
    prefix_allowed_tokens_fn: Callable[[int, torch.Tensor], list[int]] | None = None
    negative_prompt_ids: Any = None
    negative_prompt_attention_mask: Any = None
    assistant_model: Any = None
    share_prefix: bool = False
    kv_cache: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    timestamps: TimestampRules | None = None

    def as_transformers(self) -> dict[str, Any]:
        """The arguments of transformers' `generate` by name, and seed, kv_cache and
        assistant_model.
        """
        ours = ("model", "input_ids", "share_prefix", "options", "timestamps")
        # How to compile a call that is a compiled program already.
        options = without(self.options, ("compile_config",))
        named = without_absent({**without(vars(self), ours), **options})
        for name, cls in _LISTS.items():
            if named.get(name):
                named[name] = cls(named[name])
        if isinstance(self.input_ids, Mapping):
            return {**self.input_ids, **named}
        return without_absent({"inputs": self.input_ids}) | named


_NAMED: Final = frozenset(
    field.name for field in dataclasses.fields(Request)
) - {"model", "options", "timestamps"}  # fmt: skip


def read_transformers(model: Any, arguments: Mapping[str, Any]) -> Request:
    """A request with the arguments of transformers' `generate`, by name.

    Sampling draws its seed from torch's default generator, so that calls differ and
    `torch.manual_seed` reproduces.

    Raises:
        PortError: there is no prompt, of a model that needs one.
    """
    named = without(without_absent(arguments), ("synced_gpus",))
    inputs = named.pop("inputs", None)
    input_ids = named.pop("input_ids", inputs)
    if inputs is not None and input_ids is not inputs:
        # As in transformers: the decoder's, beside what an encoder reads.
        named["decoder_input_ids"], input_ids = input_ids, inputs
    # An encoder's inputs have other names too.
    has_prompt = input_ids is not None or "inputs_embeds" in named
    if not has_prompt and not model.config.is_encoder_decoder:
        raise PortError(
            "generate() of a ported model needs a prompt",
            where="input_ids",
            fix="model.generate(input_ids, ...)",
        )
    config = merge_configs(
        model, named.get("generation_config"), only(named, ("do_sample",))
    )
    if config.do_sample and "seed" not in named:
        named["seed"] = int(torch.randint(_SEEDS, ()))
    fields = {name: on_host(value) for name, value in only(named, _NAMED).items()}
    return Request(
        model=model,
        input_ids=on_host(input_ids),
        options=without(named, _NAMED),
        **fields,
    )


def on_host(value: Any) -> Any:
    """A tensor of the device on the host; anything else unchanged."""
    return compat.to_torch(value) if compat.is_ported(value) else value
