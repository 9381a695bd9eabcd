"""Encoder-decoders: greedy decoding equals transformers' `generate` on the CPU."""

import copy
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    FSMTConfig,
    FSMTForConditionalGeneration,
    PretrainedConfig,
    ProphetNetConfig,
    ProphetNetForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
)

import tpuport
from tpuport.errors import PortError
from tpuport.generation import decoder_for
from tpuport.internals.transformers_internals import infers_encoder_masks

# Of models that ask for int64, where `tpuport.enable` is not in force.
pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
NEW = 12
_TOKENS = {"vocab_size": 128, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
CONFIGS: dict[str, tuple[type, PretrainedConfig]] = {
    "t5": (
        T5ForConditionalGeneration,
        T5Config(**_TOKENS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, tie_word_embeddings=False),
    ),
    "bart": (
        BartForConditionalGeneration,
        BartConfig(
            **_TOKENS, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=48,
            forced_eos_token_id=None, bos_token_id=0,
        ),
    ),
}  # fmt: skip


# Decoders that attend to every column of a cache, so that all tokens run again for each new one.
UNCACHED: dict[str, tuple[type, PretrainedConfig]] = {
    "prophetnet": (
        ProphetNetForConditionalGeneration,
        ProphetNetConfig(
            vocab_size=128, hidden_size=32, encoder_ffn_dim=32, decoder_ffn_dim=32, num_encoder_layers=1,
            num_decoder_layers=1, num_encoder_attention_heads=4, num_decoder_attention_heads=4, pad_token_id=0,
            max_position_embeddings=64, decoder_start_token_id=3, eos_token_id=2, ngram=2,
        ),
    ),
    "fsmt": (
        FSMTForConditionalGeneration,
        FSMTConfig(
            langs=["en", "de"], src_vocab_size=128, tgt_vocab_size=128, d_model=32, encoder_layers=1, decoder_layers=2,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32,
            max_position_embeddings=64, forced_eos_token_id=None, decoder_start_token_id=3, pad_token_id=1,
        ),
    ),
}  # fmt: skip


def build(name: str) -> Any:
    """A model whose weights are large enough that greedy decoding has clear winners."""
    model_class, config = (CONFIGS | UNCACHED)[name]
    return with_large_weights(model_class(config).eval())


def with_large_weights(model: Any) -> Any:
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.fixture(scope="module")
def pair() -> Callable[[str], tuple[Any, Any]]:
    """A function from the name of a family to a model on the host and the same ported, made once."""
    pairs: dict[str, tuple[Any, Any]] = {}

    def make(name: str) -> tuple[Any, Any]:
        if name not in pairs:
            model = build(name)
            mesh = tpuport.create_mesh(devices=jax.devices()[:1])
            pairs[name] = model, tpuport.port(copy.deepcopy(model), mesh=mesh)
        return pairs[name]

    return make


@pytest.fixture(scope="module")
def texts() -> dict[str, torch.Tensor]:
    """Three texts of 20, 13 and 7 tokens, padded on the right, and one of them in its middle too."""
    ids = torch.randint(3, 128, (3, 20), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 13:] = mask[2, 7:] = mask[0, 5] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}


# `test_on_a_mesh` compares BART's tokens.
@pytest.mark.parametrize("family", ["t5", pytest.param("bart", marks=pytest.mark.slow)])
def test_the_tokens_of_transformers(family: str, pair: Callable, texts: dict) -> None:
    reference, ported = pair(family)
    options = {"max_new_tokens": NEW, "do_sample": False}
    wanted = reference.generate(**texts, **options)
    assert len(wanted[:, 1:].unique()) > 5
    assert torch.equal(tpuport.generate(ported, texts, **options), wanted)
    assert torch.equal(ported.generate(**texts, **options), wanted)
    if infers_encoder_masks():
        with pytest.raises(PortError, match="token ids with padding need a mask"):
            ported.generate(texts["input_ids"], **options)
    else:
        # Without a mask, padding is text.
        wanted = reference.generate(texts["input_ids"], **options)
        assert torch.equal(ported.generate(texts["input_ids"], **options), wanted)
    # Another length of the bucket, and another number of new tokens.
    shorter = {name: value[:, :17] for name, value in texts.items()}
    wanted = reference.generate(**shorter, max_new_tokens=5)
    assert torch.equal(ported.generate(**shorter, max_new_tokens=5), wanted)
    decoder = decoder_for(ported)
    assert (decoder.prefill.compilations, decoder.advance.compilations) == (1, 1)


# Their decoders run by the same path.
@pytest.mark.slow  # the model that takes no cache in test_models_without_cache.py, with the encoder above
@pytest.mark.parametrize("family", ["prophetnet", "fsmt"])
def test_a_decoder_without_a_cache(family: str, pair: Callable, texts: dict) -> None:
    """Of ProphetNet, whose logits without a cache are others in transformers; also of the prompt in its first token."""
    reference, ported = pair(family)
    pad = reference.config.pad_token_id
    inputs = texts | {"input_ids": texts["input_ids"].masked_fill(texts["attention_mask"] == 0, pad)}
    # So that each step depends on the order of all scores.
    options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "no_repeat_ngram_size": 1}
    if family == "prophetnet":
        options["decoder_input_ids"] = torch.tensor([[3, 5, 6], [3, 7, 8], [3, 9, 10]])
    expected = reference.generate(**inputs, **options)
    assert torch.equal(ported.generate(**inputs, **options), expected)


def test_the_decoder_begins_with_ids(pair: Callable, texts: dict) -> None:
    reference, ported = pair("t5")
    options = {"max_new_tokens": 5}
    # The token to begin with is put in front, unless it is there.
    without = torch.tensor([[5, 6], [7, 8], [9, 10]])
    wanted = reference.generate(**texts, decoder_input_ids=without, **options)
    assert torch.equal(ported.generate(**texts, decoder_input_ids=without, **options), wanted)
    wanted = reference.generate(**texts, decoder_input_ids=wanted[:, :3], **options)
    assert torch.equal(ported.generate(**texts, decoder_input_ids=wanted[:, :3], **options), wanted)
    wanted = reference.generate(**texts, decoder_start_token_id=[4, 5, 6], **options)
    assert torch.equal(ported.generate(**texts, decoder_start_token_id=[4, 5, 6], **options), wanted)


@pytest.mark.slow  # the tokens above
def test_outputs_of_the_encoder(pair: Callable, texts: dict) -> None:
    reference, ported = pair("t5")
    with torch.no_grad():
        outputs = reference.get_encoder()(**texts)
    inputs = {"encoder_outputs": outputs, "attention_mask": texts["attention_mask"]}
    wanted = reference.generate(**texts, max_new_tokens=5)
    assert torch.equal(ported.generate(**inputs, max_new_tokens=5), wanted)


@pytest.mark.slow  # plain values of a decoder that reads images: test_vision_language.py
def test_plain_values_that_the_encoder_reads() -> None:
    """Here a switch, without which ViT refuses images of another size."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    encoder = ViTConfig(image_size=8, patch_size=4, **sizes)
    decoder = BertConfig(vocab_size=40, max_position_embeddings=32, **sizes)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        encoder, decoder, decoder_start_token_id=1, pad_token_id=0, eos_token_id=None
    )
    reference = with_large_weights(VisionEncoderDecoderModel(config).eval())
    ported = tpuport.port(copy.deepcopy(reference), mesh=tpuport.create_mesh(devices=jax.devices()[:1]))
    images = torch.randn(2, 3, 16, 12, generator=torch.Generator().manual_seed(1))
    call = {"pixel_values": images, "interpolate_pos_encoding": True, "max_new_tokens": 6}
    expected = reference.generate(**call)
    assert len(expected.unique()) > 3
    assert torch.equal(ported.generate(**call), expected)
    assert decoder_for(ported).prefill.compilations == 1, "it ran on the host"


def test_texts_in_a_list(pair: Callable) -> None:
    # As many as the texts, whose programs are theirs.
    reference, ported = pair("t5")
    lists = [[5, 6, 7], [8, 9, 10, 11, 12], [13, 14, 15, 16]]
    rows = tpuport.generate(ported, lists, max_new_tokens=5)
    for ids, row in zip(lists, rows, strict=True):
        assert torch.equal(row, reference.generate(torch.tensor([ids]), max_new_tokens=5)[0])


def test_a_sample_belongs_to_its_text(pair: Callable, texts: dict) -> None:
    _, ported = pair("t5")
    options = {"do_sample": True, "max_new_tokens": NEW, "seed": 3, "eos_token_id": None}
    tokens = tpuport.generate(ported, texts, **options)
    assert torch.equal(tpuport.generate(ported, texts, **options), tokens)
    assert not torch.equal(tpuport.generate(ported, texts, **options | {"seed": 4}), tokens)
    reversed_texts = {name: value.flip(0) for name, value in texts.items()}
    assert torch.equal(tpuport.generate(ported, reversed_texts, **options), tokens.flip(0))


class Recorder:
    """A streamer that keeps what it gets."""

    def __init__(self) -> None:
        self.columns: list[torch.Tensor] = []
        self.ended = False

    def put(self, tokens: torch.Tensor) -> None:
        self.columns.append(tokens)

    def end(self) -> None:
        self.ended = True


def test_streamed(pair: Callable, texts: dict) -> None:
    reference, ported = pair("t5")
    streamer = Recorder()
    tokens = tpuport.generate(ported, texts, max_new_tokens=NEW, streamer=streamer)
    assert torch.equal(tokens, reference.generate(**texts, max_new_tokens=NEW))
    assert streamer.ended
    prompt, *columns = streamer.columns
    assert torch.equal(torch.cat([prompt, torch.stack(columns, dim=1)], dim=1), tokens)


@pytest.mark.slow  # the tokens on one device above, and test_sharded.py
@pytest.mark.parametrize("family", ["bart"])
def test_on_a_mesh(family: str, texts: dict) -> None:
    reference = build(family)
    mesh = tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4])
    ported = tpuport.port(copy.deepcopy(reference), mesh=mesh)
    wanted = reference.generate(**texts, max_new_tokens=NEW)
    assert torch.equal(tpuport.generate(ported, texts, max_new_tokens=NEW), wanted)
    decoder = decoder_for(ported)
    assert (decoder.prefill.compilations, decoder.advance.compilations) == (1, 1)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "reads input_ids"),
    ({"input_ids": [[500]]}, "vocabulary of 128"),
    ({"input_ids": [[5] * 49]}, "48 positions"),
    ({"input_ids": [[5, 6]], "pixel_values": torch.ones(1, 3)}, "pixel_values"),
    ({"input_ids": [[5, 6]], "decoder_input_ids": [[0], [0]]}, "2 rows"),
    ({"input_ids": [[5, 6]], "attention_mask": [[1, 1], [1, 1]]}, "2 rows"),
    ({"input_ids": [[5, 6]], "decoder_start_token_id": [1, 2, 3]}, "3 tokens"),
    ({"input_ids": [[5, 6]], "max_new_tokens": 60}, "max_position_embeddings"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_refused_before_compiling(arguments: dict, message: str, pair: Callable) -> None:
    _, ported = pair("bart")
    with pytest.raises(PortError, match=message):
        tpuport.generate(ported, **arguments)


@pytest.mark.slow  # test_processed_generation.py
def test_processors_read_the_encoder_s_tokens(pair: Callable, texts: dict) -> None:
    reference, ported = pair("bart")
    options = {
        "max_new_tokens": NEW, "encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 1,
        "no_repeat_ngram_size": 2, "forced_bos_token_id": 0, "forced_eos_token_id": 2, "begin_suppress_tokens": [50],
    }  # fmt: skip
    expected = reference.generate(**texts, **options)
    in_text = torch.isin(expected[:, 2:-1], texts["input_ids"][0])
    assert not in_text[0].any(), "the options change nothing: the test shows nothing"
    assert torch.equal(tpuport.generate(ported, **texts, **options), expected)


@pytest.mark.slow  # test_beam_search.py, with the texts of rows above
def test_beam_search(pair: Callable, texts: dict) -> None:
    reference, ported = pair("bart")
    options = {
        "max_new_tokens": NEW, "num_beams": 2, "num_return_sequences": 2, "eos_token_id": 2,
        "return_dict_in_generate": True, "output_scores": True, "forced_eos_token_id": 2, "forced_bos_token_id": 0,
    }  # fmt: skip
    expected = reference.generate(**texts, **options)
    got = tpuport.generate(ported, **texts, **options)
    assert type(got) is type(expected)
    assert torch.equal(got.sequences, expected.sequences)
    torch.testing.assert_close(got.sequences_scores, expected.sequences_scores, rtol=1e-5, atol=1e-5)


def no_embedding(self: Any) -> None:
    raise NotImplementedError


def embedding_of_sound(self: Any) -> torch.nn.Module:
    return torch.nn.ModuleList([torch.nn.Embedding(8, 4)])


@pytest.mark.parametrize(
    "get_input_embeddings", [no_embedding, pytest.param(embedding_of_sound, marks=pytest.mark.slow)]
)
def test_a_model_that_names_no_token_embedding(
    pair: Callable, texts: dict, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    get_input_embeddings: Callable,
) -> None:  # fmt: skip
    reference, ported = pair("bart")
    expected = reference.generate(**texts, max_new_tokens=2)
    monkeypatch.setattr(type(ported), "get_input_embeddings", get_input_embeddings)
    assert torch.equal(tpuport.generate(ported, **texts, max_new_tokens=2), expected)
    assert "does not say which its token embedding is" in caplog.text
