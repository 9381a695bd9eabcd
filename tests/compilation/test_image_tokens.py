"""Codes of images as tokens, which models look up in tables on the host, beside transformers on the CPU."""

import pytest
import torch
from transformers.models.chameleon.modeling_chameleon import ChameleonImageVocabularyMapping
from transformers.models.emu3.modeling_emu3 import Emu3ImageVocabularyMapping

import tpuport

CODES = torch.tensor([[0, 3, 5], [2, 2, 4]])


@pytest.fixture
def chameleon() -> ChameleonImageVocabularyMapping:
    # Tokens in another order than codes, which are written in letters.
    tokens = {f"IMGIMG{letter}Z": 20 - number for number, letter in enumerate("ABCDEF")}
    return ChameleonImageVocabularyMapping({"<image>": 9, **tokens})


@pytest.fixture
def emu3() -> Emu3ImageVocabularyMapping:
    tokens = {f"<|visual token {code:06d}|>": 20 - code for code in range(6)}
    return Emu3ImageVocabularyMapping({"<image>": 9, "<|extra_200|>": 7, **tokens})


def test_tokens_of_chameleon(chameleon: ChameleonImageVocabularyMapping) -> None:
    expected = chameleon.convert_img2bpe(CODES)
    actual = tpuport.compile(lambda codes: chameleon.convert_img2bpe(codes))(CODES)
    assert torch.equal(tpuport.to_cpu(actual), expected)


def test_tokens_of_emu3_and_back(emu3: Emu3ImageVocabularyMapping) -> None:
    expected = emu3.convert_img2bpe(CODES)  # type: ignore[arg-type]
    tokens = tpuport.compile(lambda codes: emu3.convert_img2bpe(codes))(CODES)
    assert torch.equal(tpuport.to_cpu(tokens), expected)
    codes = tpuport.compile(lambda tokens: emu3.convert_bpe2img(tokens))(expected)
    assert torch.equal(tpuport.to_cpu(codes), emu3.convert_bpe2img(expected))
    assert torch.equal(tpuport.to_cpu(codes), CODES.int())
