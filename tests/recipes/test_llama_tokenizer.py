"""The byte tokenizer against Python's own UTF-8."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from recipes.llama import tokenizer as byte_level

TEXTS = [
    "The harbour",
    "",
    " two  spaces, and a full stop . ",
    "line\nline\ttab\r\n",
    "Käse für 5 €",
    "日本語 🎉 \x00\x7f",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """The tokenizer as `AutoTokenizer` reads it back from a directory."""
    directory = tmp_path_factory.mktemp("tokenizer")
    byte_level.build_tokenizer(512).save_pretrained(directory)
    return AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_the_bytes_of_the_text(tokenizer, text):
    assert tokenizer(text)["input_ids"] == list(text.encode())


@given(st.text())
def test_every_text_comes_back(text):
    tokenizer = byte_level.build_tokenizer(512)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_byte_has_its_own_symbol():
    symbols = byte_level.byte_symbols()
    assert len(set(symbols)) == 256
    assert all(len(symbol) == 1 for symbol in symbols)


def test_special_tokens_follow_the_bytes(tokenizer):
    ids = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert ids == (byte_level.PAD_ID, byte_level.BOS_ID, byte_level.EOS_ID) == (256, 257, 258)
    assert len(tokenizer) <= byte_level.VOCAB_SIZE
    assert tokenizer.decode([72, 105, byte_level.EOS_ID], skip_special_tokens=True) == "Hi"


def test_a_batch_is_padded_on_the_left(tokenizer):
    batch = tokenizer(["a", "abc"], padding=True)
    assert batch["input_ids"] == [[256, 256, 97], [97, 98, 99]]
    assert batch["attention_mask"] == [[0, 0, 1], [1, 1, 1]]
