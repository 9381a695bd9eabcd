"""Which decoder a model gets: by its signature, and by whether it can be traced with a
cache.

All share two programs and the loop, and differ in what the loop carries:

- Decoder: models with attention, and hybrids of attention and recurrent layers. The
  loop carries a transformers cache of fixed shape.
- StatefulDecoder: models whose states are attributes of their modules
  (RecurrentGemma). The loop carries a transformers cache, and these attributes.
- RecurrentDecoder: models that make their own state and take it by another name
  (Mamba, RWKV, xLSTM). The loop carries the tensors of that state.
- EncoderDecoder: T5, BART, Whisper and their like. The loop carries the cache, and
  the encoder's output, computed once with the prompt.
- RecomputingDecoder: models without a cache, or whose cache cannot be traced. The
  loop carries nothing: all tokens run again for each new one.
- AssistedDecoder: drafts by a smaller model (assistant_model) or from the text,
  verified several tokens at a time. The loop carries both models' caches.
- UserDecoder: a LanguageModel of your own. The loop carries the tensors of your
  cache.
"""

import contextlib
import logging
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final, TypeVar

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh

from tpuport import checkpoint
from tpuport.checkpoint.device_layout import one_device_mesh
from tpuport.compilation import WrittenInLoop, collect_weights, settings_key
from tpuport.errors import PortError
from tpuport.generation.cache_arguments import cache_argument, takes_cache
from tpuport.generation.decoder import Decoder
from tpuport.generation.decoding_cache import has_attention, has_fixed_cache
from tpuport.generation.encoder_decoder import EncoderDecoder
from tpuport.generation.forward_signature import forward_parameters
from tpuport.generation.language_model import LanguageModel
from tpuport.generation.model_errors import NoLoop, explained_for_generate
from tpuport.generation.multimodal_decoder import MultimodalDecoder, reads_modalities
from tpuport.generation.recomputing_decoder import RecomputingDecoder
from tpuport.generation.recurrent_decoder import RecurrentDecoder
from tpuport.generation.stateful_decoder import StatefulDecoder, keeps_states_in_modules
from tpuport.generation.user_decoder import UserDecoder
from tpuport.internals.transformers_internals import takes_general_cache
from tpuport.libraries import model_facts
from tpuport.objects.state import ModelSnapshot
from tpuport.trace_errors import CannotTrace

logger = logging.getLogger("tpuport")
Loop = TypeVar("Loop")

# So many descriptions of one model that somebody makes one for each call.
_MANY_DESCRIPTIONS: Final = 3
_descriptions: weakref.WeakKeyDictionary[torch.nn.Module, int] = (
    weakref.WeakKeyDictionary()
)
_decoders: weakref.WeakKeyDictionary[Any, tuple[Hashable, Any]] = (
    weakref.WeakKeyDictionary()
)


def try_decoder(
    model: Any, begin_loop: Callable[[Decoder], Loop], *, needs_cache: bool
) -> Loop:
    """Run the prompt, in its own program; without a cache if the model cannot be traced
    with one.

    Args:
        needs_cache: the prompt has images or the like, or is behind a caller's cache,
            which only decoders with a cache take.
    """
    decoder = decoder_for(model)
    try:
        return begin_loop(decoder)
    except CannotTrace as error:
        if needs_cache:
            raise
        other = _replace_decoder(model, decoder, error)
    except WrittenInLoop as error:
        with _weights_changed(model, error):
            return begin_loop(decoder_for(model))
    _decoders[model] = _decoders[model][0], other
    return begin_loop(other)


def decoder_for(model: Any) -> Decoder:
    """The compiled programs of a ported model or a `LanguageModel`, made on first use
    and kept as long as the model.

    There are new ones once the model has been ported again, to a mesh or not, and once
    anything in it has changed but the values of its weights.
    """
    # The key has whatever a trace depends on.
    module = model.model if isinstance(model, LanguageModel) else model
    key = settings_key(module)
    last_key, decoder = _decoders.get(model, (None, None))
    if key != last_key:
        # A model on no mesh is refused later, by the names of its weights on the host.
        mesh = checkpoint.model_mesh(module) or one_device_mesh()
        decoder = _make_decoder(model, mesh)
        _decoders[model] = key, decoder
    return decoder


def _make_decoder(model: Any, mesh: Mesh) -> Decoder:
    """A new decoder.

    Raises:
        PortError: the model generates in another way than token by token from
            `input_ids`, or runs without a cache and cannot run in a buffer of fixed
            shape.
    """
    check_generate(model)
    cls = decoder_class(model)
    if cls is RecomputingDecoder:
        return _decoder_without_cache(model, mesh)
    decoder = cls(model, mesh)
    if isinstance(decoder, UserDecoder):
        _warn_of_new_descriptions(model)
        with explained_for_generate(decoder):
            decoder.verify()
    return decoder


def _warn_of_new_descriptions(language_model: LanguageModel) -> None:
    """Programs belong to a LanguageModel, so one for each call would compile in each
    call.
    """
    if language_model in _decoders:
        return
    model = language_model.model
    _descriptions[model] = _descriptions.get(model, 0) + 1
    if _descriptions[model] == _MANY_DESCRIPTIONS:
        logger.warning(
            "generate has compiled a %s for %d LanguageModels. Make one, and use it in all calls.",
            type(model).__name__, _MANY_DESCRIPTIONS,
        )  # fmt: skip


def decoder_class(model: Any) -> type[Decoder]:
    """The class of a language model's decoder, by its config and its signature."""
    if isinstance(model, LanguageModel):
        return UserDecoder
    if model.config.is_encoder_decoder:
        return EncoderDecoder
    parameters = forward_parameters(model)
    if cache_argument(parameters) and takes_general_cache(model):
        if not has_fixed_cache(model.config):
            return RecomputingDecoder
        if keeps_states_in_modules(model):
            return StatefulDecoder
        if has_attention(model.config):
            return MultimodalDecoder if reads_modalities(model) else Decoder
    return RecurrentDecoder if takes_cache(parameters) else RecomputingDecoder


def _decoder_without_cache(model: Any, mesh: Mesh) -> RecomputingDecoder:
    """A decoder that runs all tokens for each new one; PortError if the model cannot
    run so.
    """
    decoder = RecomputingDecoder(model, mesh)
    with explained_for_generate(decoder):
        decoder.verify()
    decoder.warn()
    return decoder


def _replace_decoder(
    model: Any, decoder: Decoder, error: CannotTrace
) -> RecomputingDecoder:
    """A decoder without a cache, for a model that cannot be traced with one; the error
    itself if there is none.
    """
    if type(decoder) not in (Decoder, RecurrentDecoder, MultimodalDecoder):
        raise error
    try:
        return _decoder_without_cache(model, decoder.mesh)
    except PortError:
        # What the user can act on is why the usual way fails.
        raise error from None


@contextlib.contextmanager
def _weights_changed(model: Any, error: WrittenInLoop) -> Iterator[None]:
    """A model that changes its weights before it generates, as RWKV does, whose first
    call rescales them.

    Its own call keeps what it writes, and the next one writes nothing. If the block
    raises, the model becomes what it was before. The error itself for a model of
    another kind.
    """
    if not isinstance(model, torch.nn.Module) or "input_ids" not in forward_parameters(
        model
    ):
        raise error
    before = ModelSnapshot(model)
    try:
        _change_weights(model, before, error)
        yield
    except WrittenInLoop:
        before.restore()
        raise error from None
    except BaseException:
        before.restore()
        raise


def _change_weights(model: Any, before: ModelSnapshot, error: WrittenInLoop) -> None:
    """Call a model twice from the same start; the error if what it writes depends on
    the tokens.
    """
    model(input_ids=torch.zeros(1, 1, dtype=torch.int64))
    written = collect_weights(model)
    before.restore()
    model(input_ids=torch.ones(1, 2, dtype=torch.int64))
    again = collect_weights(model)
    if any(
        array is not again[name] and not _are_equal(array, again[name])
        for name, array in written.items()
    ):
        raise error


def _are_equal(first: jax.Array, second: jax.Array) -> bool:
    return bool(
        jnp.array_equal(
            first, second, equal_nan=jnp.issubdtype(first.dtype, jnp.inexact)
        )
    )


def check_generate(model: Any) -> None:
    """PortError for a model that cannot decode with arrays of fixed shape."""
    if isinstance(model, LanguageModel):
        return
    if reason := model_facts.GROWING.get(model.config.model_type):
        raise NoLoop(
            reason,
            where=f"{type(model).__name__}.prepare_inputs_for_generation",
            fix="use transformers' own generate, after tpuport.to_cpu(model)",
        )
    reason = model_facts.WITHOUT_SPARSE_CACHE.get(model.config.model_type)
    if reason and model.config.attention_type == "block_sparse":
        raise PortError(
            reason,
            where="attention_type='block_sparse'",
            fix="set attention_type='original_full' in its config, and is_decoder=True",
        )
