"""A tokenizer whose tokens are the bytes of UTF-8: token `b` is byte `b`, and three special tokens follow."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
PAD_ID, BOS_ID, EOS_ID = 256, 257, 258
VOCAB_SIZE = 264  # 256 bytes and 3 special tokens, rounded up so that 8 devices divide the embedding


def byte_symbols() -> list[str]:
    """The printable character that the ByteLevel pre-tokenizer writes for each byte 0..255.

    A byte that Latin-1 prints stands for itself; the others take the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + hidden.index(byte)) for byte in range(256)]


def build_tokenizer(model_max_length: int) -> PreTrainedTokenizerFast:
    """The byte tokenizer, in the form that `AutoTokenizer` loads from a directory without running any code.

    Special tokens are never added by themselves, so that `decode(encode(text)) == text` for every text.
    """
    vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in (PAD, BOS, EOS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        padding_side="left",
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
    )
