"""A tokenizer for models of random weights, whose tokens are characters."""

import tokenizers
from transformers import PreTrainedTokenizerFast


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Token n is the character chr(n)."""
    model = tokenizers.models.WordLevel({chr(n): n for n in range(128)}, unk_token=chr(0))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    tokenizer.decoder = tokenizers.decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
