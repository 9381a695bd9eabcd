"""What single models do that neither their signature nor their config says: by
`model_type`, or by the name of a class.

Each is a case that no property of the class tells; a mechanism is better where there is
one.
"""

from typing import Final

# Why models cannot decode with arrays of fixed shape, by their type.
GROWING: Final = {
    "blt": "BLT divides its whole text into patches again in each step, and the last patch is another one where more "
    "bytes follow",
    "cpmant": "CPM-Ant reads its whole text in each step beside a cache of it, whose length it compares with zero and "
    "by which it cuts tensors, and without a cache its logits are others, because all its tokens see each other",
    "xlnet": "XLNet runs its last two tokens again in each step, with states of the others that grow, and puts a "
    "token of its own behind them",
}
# Why a model with block-sparse attention cannot decode with a cache, by its type.
WITHOUT_SPARSE_CACHE: Final = {
    "big_bird": "BigBird's block-sparse attention has no cache: transformers makes it full attention with the first "
    "new token, which then sees no other one",
}
# Decoders that attend to every column of the cache, written or not. All their tokens
# run again for each new one.
UNCACHED: Final = frozenset({"fsmt", "prophetnet"})
# They make the decoder's causal mask only where they get the encoder's tokens too, of
# which nothing else is made.
MASKING_BY_TEXT: Final = frozenset({"fsmt"})
# Their `prepare_inputs_for_generation` makes positions from the decoder's mask.
COUNTING_BY_MASK: Final = frozenset({"whisper"})
# Encoders that give the same for a row whatever masked columns follow it: their
# positions are distances, or numbers of columns, or counted from ids that are not
# padding. Not among them: those that cut the columns into blocks by their number
# (BigBird), and those that mix all columns before any mask.
MASKED_ENCODERS: Final = frozenset(
    "t5 mt5 umt5 bart mbart pegasus marian m2m_100 blenderbot blenderbot-small plbart mvp fsmt".split()
)
# Their users give decoder_input_ids with every special token.
COMPLETE_PROMPTS: Final = frozenset({"whisper"})
# They take a mask and read it only in training; it may be that of a whole recording, of
# which they get a segment.
WITHOUT_MASK: Final = frozenset({"whisper"})
# Attention whose weights BridgeTower's model puts into its output, whatever it is asked
# for.
RETURNING_ATTENTION: Final = frozenset(
    {"BridgeTowerSelfAttention", "BridgeTowerCrossAttention"}
)
# Pipelines that make at least as many frames as are asked for, and cut the clip to
# these.
CUT_CLIPS: Final = frozenset({"AllegroPipeline"})
