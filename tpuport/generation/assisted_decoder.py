"""The decoding loop of a model that verifies drafts of several tokens at a time.

A step drafts up to K tokens, runs the model once on the last token and the draft, and
chooses the next token at each position as a step of one token would: from the model's
logits there, with the same processors and random keys. It goes on as long as it chooses
what was drafted. So the tokens are those of decoding one by one, whatever the draft was
(Leviathan et al. 2023, Fast inference from transformers via speculative decoding). Rows
go on together, with as many tokens as the row with the fewest. Shapes: B batch, P
prompt, N = K + 1 tokens, V vocabulary.
"""

import dataclasses
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpuport import checkpoint
from tpuport.errors import PortError
from tpuport.generation.call_checks import check_model
from tpuport.generation.decoder import Decoder
from tpuport.generation.decoder_choice import decoder_for
from tpuport.generation.decoding_cache import has_states
from tpuport.generation.drafts import ModelDrafter, TextDrafter
from tpuport.generation.encoder_decoder import ENCODER_OUTPUTS, EncoderDecoder
from tpuport.generation.generation_options import Options
from tpuport.generation.language_model import LanguageModel
from tpuport.generation.length_limits import table_changes
from tpuport.generation.loop_state import PaddedPrompt, PromptParts, State
from tpuport.generation.model_inputs import vocabulary_size
from tpuport.generation.padding_check import are_close
from tpuport.generation.partial_prompts import share_prefix
from tpuport.generation.prompts import Prompt, Prompts
from tpuport.generation.request import Request
from tpuport.generation.sampling import Choice, SamplingSettings
from tpuport.trace_errors import CannotTrace

logger = logging.getLogger("tpuport")

# Of the comparison of several tokens at once with a prompt.
_FIRST, _MORE, _COLUMNS = 3, 3, 32
# transformers' own.
_ASSISTANT_TOKENS = 20
_ASSISTANT_THRESHOLD = 0.4


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class AssistedCache:
    """What the loop carries: the cache of the model, and that of what drafts."""

    model: Any
    draft: Any


class AssistedDecoder(Decoder):
    """The compiled programs of a ported model with drafts.

    Attributes:
        spare_columns: K, since the last draft may go beyond the tokens that are asked
            for.
    """

    def __init__(self, decoder: Decoder, drafter: ModelDrafter | TextDrafter) -> None:
        """Add drafts to the programs of a model by itself."""
        super().__init__(decoder.model, decoder.mesh)
        self._plain = decoder
        self._decoder = decoder.variant(
            keeps_all_columns=True, kv_cache=decoder.kv_cache
        )
        self._drafter = drafter
        self.spare_columns = drafter.count

    @property
    def uses_buckets(self) -> bool:
        """As without drafts."""
        return self._plain.uses_buckets

    @property
    def without_drafts(self) -> Decoder:
        """The decoder of the model alone."""
        return self._plain

    @property
    def arrays(self) -> dict[str, Any]:
        """The weights of the model and of the drafting one."""
        return {"model": self._decoder.arrays, "draft": self._drafter.arrays}

    def forward_prompt(
        self, arrays: dict[str, Any], prompt: PaddedPrompt
    ) -> tuple[jax.Array, AssistedCache]:
        """Traced. Float32 logits [B, V] after the prompt [B, P], and the caches with
        it; the prompt of the drafting model runs at once.
        """
        logits, cache = self._decoder.forward_prompt(arrays["model"], prompt)
        draft = self._drafter.begin(arrays["draft"], prompt._replace(parts=None))
        return logits, AssistedCache(cache, draft)

    def run_loop(
        self,
        arrays: dict[str, Any],
        state: State,
        keys: jax.Array,
        prompt_columns: jax.Array,
        limit: jax.Array,
        settings: SamplingSettings,
    ) -> State:
        """Traced. As `Decoder.run_loop`, several tokens a step."""
        choice = Choice(keys, prompt_columns, settings)
        return self.loop(
            lambda state: self._verify_draft(arrays, state, choice, limit), state, limit
        )

    def _verify_draft(
        self, arrays: dict[str, Any], state: State, choice: Choice, limit: jax.Array
    ) -> State:
        """Traced. Draft tokens, and append those that the model chooses too and one
        more.
        """
        first = state.length
        draft = self._drafter.draft(
            arrays["draft"], state, state.cache.draft, choice, limit
        )
        last = jax.lax.dynamic_slice_in_dim(state.tokens, first - 1, 1, axis=1)
        logits, cache = self._decoder.forward_tokens(
            arrays["model"], jnp.concatenate([last, draft.tokens], axis=1), state.present, first - 1, limit,
            state.cache.model,
        )  # fmt: skip
        caches = AssistedCache(cache, draft.cache)

        def append(state: State) -> State:
            chosen = jax.lax.dynamic_index_in_dim(
                logits, state.length - first, axis=1, keepdims=False
            )
            return self.append(state, chosen, choice)

        def is_drafted(state: State) -> jax.Array:
            index = state.length - first - 1
            chosen = jax.lax.dynamic_index_in_dim(
                state.tokens, state.length - 1, axis=1, keepdims=False
            )
            # An index beyond the end is that of the last one, which the count excludes.
            drafted = jax.lax.dynamic_index_in_dim(
                draft.tokens, index, axis=1, keepdims=False
            )
            matches = ((chosen == drafted) & (index < draft.counts)) | state.finished
            return jnp.all(matches) & (index < draft.tokens.shape[1])

        def goes_on(state: State) -> jax.Array:
            return is_drafted(state) & (state.length < limit) & ~jnp.all(state.finished)

        # The caches do not change with the tokens that are chosen.
        state = jax.lax.while_loop(goes_on, append, append(state._replace(cache=())))
        return state._replace(cache=caches)


def takes_several_tokens(decoder: Decoder) -> bool:
    """Whether a model goes on from its cache with several tokens at once as with a
    longer prompt.

    The model's code decides that: it may be no causal one, or make its positions in
    another way.
    """
    if type(decoder) is not Decoder:
        return False
    if decoder.continues is None:
        decoder.continues = _continues(decoder)
    return decoder.continues


def _continues(decoder: Decoder) -> bool:
    tokens = np.arange(1, _FIRST + _MORE + 1, dtype=np.int32)[None] % vocabulary_size(
        decoder.model
    )

    def run(
        arrays: dict[str, jax.Array], tokens: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        def run_prompt(count: int) -> tuple[jax.Array, Any]:
            prompt = tokens[:, :count]
            mask = jnp.ones(prompt.shape, jnp.bool_)
            return probe.forward_prompt(arrays, PaddedPrompt(prompt, mask, _COLUMNS))

        _, cache = run_prompt(_FIRST)
        present = jnp.ones((1, _COLUMNS), jnp.bool_)
        column = jnp.asarray(_FIRST, jnp.int32)
        logits, _ = probe.forward_tokens(
            arrays, tokens[:, _FIRST:], present, column, column + _MORE, cache
        )
        prompts = [run_prompt(_FIRST + count)[0][0] for count in (1, _MORE)]
        return jnp.stack(prompts), logits[0, jnp.asarray([0, _MORE - 1])]

    probe = decoder.variant(keeps_all_columns=True)
    try:
        expected, actual = decoder.evaluate(run, tokens)
    except (
        CannotTrace,
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        logger.debug(
            "%s takes one token at a time: %r", type(decoder.model).__name__, error
        )
        return False
    return are_close(decoder, expected, actual)


def with_drafts(
    decoder: Decoder, request: Request, options: Options, prompt: Prompt
) -> Decoder:
    """The decoder that drafts with the assistant or with the text itself, if either is
    asked for; `decoder` with a warning where it cannot.

    Raises:
        PortError: the assistant is no ported model, has another vocabulary, is on
            another mesh, or would not give the same tokens.
    """
    model = request.assistant_model
    if model is None and options.prompt_lookup is None:
        return decoder
    assistant = None
    if model is not None:
        _check_assistant_model(request, prompt)
        assistant = decoder_for(model)
    name = "prompt_lookup_num_tokens" if assistant is None else "assistant_model"
    reason = _reason_against(decoder, assistant, options, prompt.tokens.shape[1])
    if reason:
        logger.warning(
            "%s: generate decodes token by token, which gives the same tokens: %s",
            name,
            reason,
        )
        return decoder
    if assistant is None:
        assert options.prompt_lookup is not None
        drafter = TextDrafter(*options.prompt_lookup)
    else:
        _check_assistant(decoder, assistant)
        drafter = _model_drafter(assistant)
    if drafter not in decoder.assisted:
        _forget_unused(decoder, drafter)
        decoder.assisted[drafter] = AssistedDecoder(decoder, drafter)
    return decoder.assisted[drafter]


def _check_assistant_model(request: Request, prompt: Prompt) -> None:
    """PortError for an assistant that is no ported model, or would not give the same
    tokens.
    """
    model = request.assistant_model
    check_model(model)
    if isinstance(model, LanguageModel) or checkpoint.model_mesh(model) is None:
        raise PortError(
            "the assistant is not a ported model of transformers",
            where=f"assistant_model={type(model).__name__}",
            fix="assistant_model=tpuport.port(assistant, mesh=...), with the model's own mesh",
        )
    if request.timestamps is not None:
        raise PortError(
            "with an assistant, Whisper's rules of timestamps count from other tokens in transformers, and give others",
            where="assistant_model, return_timestamps=True",
            fix="leave out one of the two",
        )
    if ENCODER_OUTPUTS in prompt.inputs:
        raise PortError(
            "the assistant has an encoder of its own, which needs the text or the recording",
            where=ENCODER_OUTPUTS,
            fix="give what the encoder reads, or leave assistant_model out",
        )


def _model_drafter(assistant: Decoder) -> ModelDrafter:
    config = assistant.model.generation_config
    count = getattr(config, "num_assistant_tokens", None) or _ASSISTANT_TOKENS
    threshold = getattr(config, "assistant_confidence_threshold", None)
    return ModelDrafter(
        assistant.variant(keeps_all_columns=True),
        count,
        _ASSISTANT_THRESHOLD if threshold is None else threshold,
    )


def _forget_unused(decoder: Decoder, drafter: ModelDrafter | TextDrafter) -> None:
    """Drop the programs with assistants that are gone, or that this one takes the place
    of: of the same model.
    """
    new = drafter.decoder if isinstance(drafter, ModelDrafter) else None
    for other in list(decoder.assisted):
        if not isinstance(other, ModelDrafter) or other.decoder is new:
            continue
        if other.decoder.model is None or (new and other.decoder.model is new.model):
            del decoder.assisted[other]


def _reason_against(
    decoder: Decoder, assistant: Decoder | None, options: Options, length: int
) -> str:
    if options.guidance_scale is not None:
        return "guidance_scale runs another prompt beside it"
    if table_changes(decoder.model, length + options.max_new - 1):
        return "tokens of several positions would share a rotary table that changes with the length"
    if isinstance(decoder, EncoderDecoder):
        return _reason_against_encoder(decoder, assistant)
    for each in (decoder, assistant):
        if each is None:
            continue
        name = type(each.model).__name__
        if type(each) is not Decoder or not each.uses_buckets:
            return f"{name} does not decode with a cache and positions of its own mask"
        if has_states(each.model.config):
            return f"{name} has states of a recurrence, which cannot forget a draft"
        if not takes_several_tokens(each):
            return f"{name} takes one token at a time"
    return ""


def _reason_against_encoder(decoder: EncoderDecoder, assistant: Decoder | None) -> str:
    if assistant is not None and not isinstance(assistant, EncoderDecoder):
        return f"{type(assistant.model).__name__} has no encoder"
    for each in (decoder, assistant):
        if each is not None and not each.takes_drafts:
            return f"{type(each.model).__name__} takes one token at a time"
    return ""


def _check_assistant(decoder: Decoder, assistant: Decoder) -> None:
    sizes = [vocabulary_size(each.model) for each in (decoder, assistant)]
    if sizes[0] != sizes[1]:
        raise PortError(
            f"the vocabularies have {sizes[0]} and {sizes[1]} tokens: a draft has to be in the model's own",
            where=f"assistant_model={type(assistant.model).__name__}",
            fix="give a smaller model of the same family, or leave it out: the tokens are the same",
        )
    if decoder.mesh != assistant.mesh:
        raise PortError(
            "the assistant is on another mesh than the model",
            where=f"assistant_model={type(assistant.model).__name__}",
            fix="port both with the same mesh=",
        )


def divide_prompt(
    decoder: Decoder, prompts: Prompts, options: Options, *, shares_prefix: bool
) -> tuple[Prompts, PromptParts | None]:
    """The prompts, and the parts that the options ask for: None if they run at once."""
    names = ["prefill_chunk_size"] * (options.prefill_chunk_size is not None)
    names += ["share_prefix"] * shares_prefix
    if not names:
        return prompts, None
    plain = decoder.without_drafts
    changes = table_changes(plain.model, prompts.length)
    if changes and (options.prefill_chunk_size or prompts.length) < prompts.length:
        raise PortError(
            "each part of this prompt would have the rotary table of its own length",
            where=f"prefill_chunk_size={options.prefill_chunk_size}",
            fix="leave it out",
        )
    # States of a recurrence have seen more than the columns that are shared.
    is_divided = not changes and takes_several_tokens(plain) and plain.uses_buckets
    if not is_divided or (shares_prefix and has_states(plain.model.config)):
        logger.warning(
            "%s: the prompt of %s runs at once, which gives the same tokens and takes more memory",
            ", ".join(names), type(decoder.model).__name__,
        )  # fmt: skip
        return prompts, None
    shared = 0
    if shares_prefix:
        prompts, shared = share_prefix(prompts)
    chunk = options.prefill_chunk_size
    if not shared and (chunk is None or chunk >= prompts.tokens.shape[1]):
        return prompts, None
    return prompts, PromptParts(chunk, shared)
