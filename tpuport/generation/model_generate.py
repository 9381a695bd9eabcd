"""`model.generate` of a ported transformers model: transformers' arguments,
`tpuport.generate` underneath.
"""

from collections.abc import Sequence
from typing import Any

import jax
import torch
from transformers import GenerationConfig

from tpuport import compat
from tpuport.compilation.model_calls import is_on_host
from tpuport.errors import PortError
from tpuport.generation.generating import run_generate
from tpuport.generation.generation_options import merge_configs
from tpuport.generation.host_view import ModuleCalls
from tpuport.generation.option_values import without_absent
from tpuport.generation.own_generate import has_own_generate, run_own_generate
from tpuport.generation.whisper_processors import detect_silence, read_processors

# torch's generators give 64 bits; a seed has to be positive.
_SEEDS = 2**31


class ModelGenerate:
    """`model.generate` of a ported model.

    Attributes:
        model: the model, a language model of transformers.
        module_calls: of it and its modules, for code of the host.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.module_calls = ModuleCalls(model)

    def __call__(
        self,
        inputs: Any = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Any = None,
        stopping_criteria: Sequence[Any] | None = None,
        prefix_allowed_tokens_fn: Any = None,
        assistant_model: Any = None,
        streamer: Any = None,
        negative_prompt_ids: Any = None,
        negative_prompt_attention_mask: Any = None,
        **options: Any,
    ) -> Any:
        """Generate token ids with the arguments of transformers' `generate`.

        Sampling draws its seed from torch's default generator, so that calls differ and
        `torch.manual_seed` reproduces.

        Returns:
            LongTensor [batch, length] on the host, as `tpuport.generate` returns it.

        Raises:
            PortError: an argument or an option that is not supported, by name.
        """
        if is_on_host(self.model):
            supported = {
                "inputs": inputs, "generation_config": generation_config, "stopping_criteria": stopping_criteria,
                "streamer": streamer, "logits_processor": logits_processor,
                "prefix_allowed_tokens_fn": prefix_allowed_tokens_fn, "negative_prompt_ids": negative_prompt_ids,
                "negative_prompt_attention_mask": negative_prompt_attention_mask, "assistant_model": assistant_model,
            }  # fmt: skip
            return type(self.model).generate(self.model, **supported, **options)
        arguments = {
            "inputs": inputs, "generation_config": generation_config, "stopping_criteria": stopping_criteria,
            "streamer": streamer, "logits_processor": logits_processor,
            "prefix_allowed_tokens_fn": prefix_allowed_tokens_fn, "negative_prompt_ids": negative_prompt_ids,
            "negative_prompt_attention_mask": negative_prompt_attention_mask, "assistant_model": assistant_model,
            **options,
        }  # fmt: skip
        arguments = without_absent(arguments)
        if has_own_generate(self.model):
            assistant = {
                name: arguments.pop(name)
                for name in ("assistant_model",)
                if name in arguments
            }
            arguments = jax.tree.map(_on_host, arguments, is_leaf=compat.is_ported)
            return run_own_generate(
                self.model, self.module_calls, arguments | assistant
            )
        return self.run(**arguments)

    def run(
        self,
        inputs: Any = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Any = None,
        stopping_criteria: Sequence[Any] | None = None,
        prefix_allowed_tokens_fn: Any = None,
        synced_gpus: bool | None = None,
        assistant_model: Any = None,
        streamer: Any = None,
        **options: Any,
    ) -> Any:
        """Generate with tpuport's loop, whatever `generate` the model's class may have.

        The arguments have the order of transformers' `generate`; `synced_gpus` has no
        effect.
        """
        options = without_absent(options)
        timestamps = None
        if has_own_generate(self.model) and logits_processor:
            detect_silence(logits_processor, options.get("decoder_input_ids"))
            logits_processor, timestamps, own_options = read_processors(
                logits_processor
            )
            # An option whose processor a class makes itself, it says to be None.
            options |= {
                name: value
                for name, value in own_options.items()
                if options.get(name) is None
            }
        input_ids = options.pop("input_ids", inputs)
        if inputs is not None and input_ids is not inputs:
            # As in transformers: the decoder's, beside what an encoder reads.
            options["decoder_input_ids"], input_ids = input_ids, inputs
        # An encoder's inputs have other names too.
        has_prompt = input_ids is not None or "inputs_embeds" in options
        if not has_prompt and not self.model.config.is_encoder_decoder:
            raise PortError(
                "generate() of a ported model needs a prompt",
                where="input_ids",
                fix="model.generate(input_ids, ...)",
            )
        if self._samples(generation_config, options) and "seed" not in options:
            options["seed"] = int(torch.randint(_SEEDS, ()))
        return run_generate(
            self.model, _on_host(input_ids), _on_host(options.pop("attention_mask", None)), generation_config,
            streamer, options.pop("seed", 0), stopping_criteria=stopping_criteria,
            tokenizer=options.pop("tokenizer", None), logits_processor=logits_processor or None,
            prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
            negative_prompt_ids=_on_host(options.pop("negative_prompt_ids", None)),
            negative_prompt_attention_mask=_on_host(options.pop("negative_prompt_attention_mask", None)),
            assistant_model=assistant_model, share_prefix=options.pop("share_prefix", False),
            kv_cache=options.pop("kv_cache", None), options=options, timestamps=timestamps,
        )  # fmt: skip

    def _samples(
        self, generation_config: GenerationConfig | None, options: dict[str, Any]
    ) -> bool:
        named = {name: value for name, value in options.items() if name == "do_sample"}
        config = merge_configs(
            self.model, generation_config or GenerationConfig(), named
        )
        return bool(config.do_sample)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModelGenerate":
        return ModelGenerate(memo.get(id(self.model), self.model))


def _on_host(value: Any) -> Any:
    return compat.to_torch(value) if compat.is_ported(value) else value


def replace_generate(model: Any) -> None:
    """Let `model.generate` of a ported language model be tpuport's. Does nothing for
    other models.
    """
    can_generate = getattr(model, "can_generate", None)
    if (
        callable(getattr(model, "generate", None))
        and callable(can_generate)
        and can_generate()
    ):
        model.generate = ModelGenerate(model)


def restore_generate(model: Any) -> None:
    """Give a model transformers' `generate` back."""
    if isinstance(vars(model).get("generate"), ModelGenerate):
        del model.generate
