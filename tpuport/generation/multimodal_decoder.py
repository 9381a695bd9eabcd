"""The decoding loop of models that read images, videos or audio beside the prompt's
tokens.

The prompt's program gets those inputs as arguments, and the model merges their features
with the embeddings of its tokens on the device. The program of further tokens gets none
of them, only the cache. Shapes: B batch, P prompt bucket, T cache length, V vocabulary.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from transformers.generation import utils

from tpuport import compat
from tpuport.compat.tracing import trace_lock
from tpuport.compilation import use_weights_in_loop
from tpuport.errors import PortError
from tpuport.generation import model_inputs
from tpuport.generation.decoder import LOOP, Decoder
from tpuport.generation.decoding_cache import has_cross_layers
from tpuport.generation.deferred_checks import collect_checks
from tpuport.generation.forward_signature import forward_parameters
from tpuport.generation.loop_state import Arrays, PaddedPrompt, State
from tpuport.generation.model_inputs import Setting, as_argument
from tpuport.generation.multimodal_inputs import POSITIONS, REAL_IMAGES, TOKEN_TYPES
from tpuport.generation.residual_stream import summed_once
from tpuport.libraries.library_classes import cache_of_output
from tpuport.patches import transformers_images

# Arguments of `forward` that transformers passes to the prompt's call alone, beside
# those of older releases.
_MODALITIES = frozenset(getattr(utils, "MULTIMODAL_INPUTS_TO_DROP_OUTSIDE_PREFILL", ())) | {
    "pixel_values", "pixel_values_videos", "input_features", "input_values",
}  # fmt: skip
# The prompt in another form, or features that the model itself computes.
_NOT_OF_A_PROCESSOR = frozenset(
    {"input_ids", "attention_mask", "inputs_embeds", "position_ids"}
)
_NOT_OF_A_PROCESSOR |= {"mm_encoder_outputs"}


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class MultimodalCache:
    """What the loop carries.

    Attributes:
        cache: a transformers cache of jax arrays.
        position_offsets: int32 [B, ...], added to a token's number in its row: images
            may take fewer positions than tokens, along several axes.
        token_types: of the next token by the name of the argument, [B, 1].
        inputs_fit: whether the model's own checks of the prompt hold, a bool scalar.
        settings: plain values by the name of the argument, which each call gets.
    """

    cache: Any
    position_offsets: jax.Array
    token_types: Arrays
    inputs_fit: jax.Array
    settings: dict[str, Setting]


def reads_modalities(model: Any) -> bool:
    """Whether a decoder-only model takes images, videos or audio, by its signature."""
    return not _MODALITIES.isdisjoint(forward_parameters(model))


class MultimodalDecoder(Decoder):
    """The compiled programs of a ported model that reads more than tokens."""

    alternative = "use transformers' own generate, after tpuport.to_cpu(model)"

    @classmethod
    def input_names(cls, model: Any) -> frozenset[str]:
        """Of the model's signature."""
        return model_inputs.input_names(forward_parameters(model)) - _NOT_OF_A_PROCESSOR

    @property
    def uses_buckets(self) -> bool:
        """Not for Mllama: without a mask, its tokens attend to as many columns of an
        image as stand before them.
        """
        return super().uses_buckets and not has_cross_layers(self.model.config)

    def forward_prompt(
        self, arrays: Arrays, prompt: PaddedPrompt
    ) -> tuple[jax.Array, MultimodalCache]:
        """Traced. Float32 logits [B, V] after the prompt [B, P] with its images, and
        what the loop carries.
        """
        tokens, mask, slots, given, _ = prompt
        cache = self.make_cache(slots)
        numbers = jnp.maximum(jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)
        inputs = dict(given)
        positions = inputs.pop(POSITIONS, numbers)
        real_images = inputs.pop(REAL_IMAGES, None)
        token_types = {name: inputs[name] for name in TOKEN_TYPES if name in inputs}
        arguments = {name: as_argument(value) for name, value in inputs.items()}
        with (
            trace_lock,
            summed_once(self.model, self.mesh),
            compat.host_tensors_as_constants(),
            transformers_images.known_images(
                None if real_images is None else as_argument(real_images)
            ),
            collect_checks() as checks,
        ):
            logits, cache = self._call(
                arrays, tokens, mask, positions, cache, arguments, is_prompt=True
            )
        last = numbers[:, -1].reshape(-1, *[1] * (positions.ndim - 2))
        carried = MultimodalCache(
            cache=cache,
            position_offsets=positions[..., -1] - last,
            token_types={
                name: TOKEN_TYPES[name](types[:, -1:])
                for name, types in token_types.items()
            },
            inputs_fit=jnp.stack(checks).all() if checks else jnp.asarray(True),
            settings={
                name: value
                for name, value in inputs.items()
                if isinstance(value, Setting)
            },
        )
        return logits, carried

    def forward_token(
        self, arrays: Arrays, state: State
    ) -> tuple[jax.Array, MultimodalCache]:
        """Traced. As `forward_prompt`, for the token chosen last."""
        token, present, number = self.token_inputs(state)
        carried: MultimodalCache = state.cache
        offsets = carried.position_offsets
        positions = (number.reshape(-1, *[1] * (offsets.ndim - 1)) + offsets)[..., None]
        given = carried.token_types | carried.settings
        arguments = {name: as_argument(value) for name, value in given.items()}
        logits, cache = self._call(
            arrays, token, present, positions, carried.cache, arguments, is_prompt=False
        )
        return logits, dataclasses.replace(carried, cache=cache)

    def check_prompt(self, state: State, inputs: Mapping[str, Any]) -> None:
        """PortError if the model's own checks do not hold, which raise in torch."""
        if inputs and not np.asarray(state.cache.inputs_fit):
            name = type(self.model).__name__
            raise PortError(
                f"the prompt's tokens do not fit its images, videos or audio: {name} checks their numbers, and they "
                "differ",
                where=", ".join(inputs),
                fix="give all that the processor returns for these prompts, of one call",
            )

    def _call(
        self,
        arrays: Arrays,
        tokens: jax.Array,
        mask: jax.Array,
        positions: jax.Array,
        cache: Any,
        arguments: dict[str, Any],
        *,
        is_prompt: bool,
    ) -> tuple[jax.Array, Any]:
        """Traced. Float32 logits [B, V] of the last column, and the cache written.

        Args:
            positions: [B, ..., n], the rows first.
        """
        if "position_ids" in self._parameters:
            if positions.ndim > 2:
                positions = jnp.moveaxis(positions, 0, -2)
            arguments = {**arguments, "position_ids": compat.wrap(positions)}
        if "logits_to_keep" in self._parameters:
            arguments["logits_to_keep"] = 1
        with use_weights_in_loop(self.model, arrays, LOOP):
            with _without_masks(self.model):
                prepared = model_inputs.prepare_inputs(
                    self.model, tokens, attention_mask=compat.wrap(mask), use_cache=True, is_first_iteration=is_prompt,
                    **{self._cache_argument: compat.as_torch(cache)}, **arguments,
                )  # fmt: skip
            if "attention_mask" in self._parameters:
                prepared["attention_mask"] = compat.wrap(mask)
            output = self.model(**prepared, return_dict=True)
        logits = compat.as_jax(output.logits)[:, -1].astype(jnp.float32)
        return logits, compat.as_jax(cache_of_output(output))


@contextlib.contextmanager
def _without_masks(model: Any) -> Iterator[None]:
    """In the block, `prepare_inputs_for_generation` makes no masks of four dimensions.

    It does so for a cache of fixed shape, and not every model takes them; `forward`
    makes those that it needs.
    """
    name = "create_masks_for_generate"
    # An attribute of the object hides its class's method, or the general function in
    # place of one.
    vars(model)[name] = lambda **_: None
    try:
        yield
    finally:
        del vars(model)[name]
