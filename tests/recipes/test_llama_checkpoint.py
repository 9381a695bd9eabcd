"""The committed checkpoint: small, loaded by transformers alone, and truly trained on the corpus."""

import json
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.llama import train
from recipes.llama.tokenizer import build_tokenizer

CHECKPOINT = train.CORPUS.parent / "checkpoint"
LIMIT_BYTES = 4_000_000
BOUND = 0.1  # nats a byte; knowing nothing gives ln(264) = 5.6, knowing only how often letters occur about 3


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()


def excerpt(name):
    """The first five stories of one file of the corpus."""
    return (train.CORPUS / name).read_text(encoding="utf-8").split("\n\n")[:5]


def test_it_fits_its_limit():
    assert sum(file.stat().st_size for file in CHECKPOINT.iterdir()) <= LIMIT_BYTES


def test_it_holds_safetensors_and_no_code():
    assert {file.suffix for file in CHECKPOINT.iterdir()} == {".json", ".safetensors"}


def test_it_is_the_model_that_the_script_trains(model):
    expected = train.model_config().to_dict()
    written = model.config.to_dict()
    aside = {"dtype", "architectures", "_name_or_path", "transformers_version"}
    assert {key: written[key] for key in expected if key not in aside} == {
        key: value for key, value in expected.items() if key not in aside
    }


def test_its_tokenizer_is_the_one_that_the_script_builds(tmp_path):
    build_tokenizer(train.CONTEXT).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert json.loads((CHECKPOINT / name).read_text()) == json.loads((tmp_path / name).read_text())


@pytest.mark.parametrize("devices", [2, 4])
def test_heads_divide_among_devices(model, devices):
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    sizes = (model.config.num_key_value_heads, model.config.intermediate_size, model.config.vocab_size)
    assert all(size % devices == 0 for size in sizes)


@pytest.mark.parametrize("name", ["days.txt", "harbour.txt", "machines.txt"])
@torch.inference_mode()
def test_it_knows_its_corpus(model, tokenizer, name):
    inputs = tokenizer(excerpt(name), return_tensors="pt", padding=True, padding_side="right")
    labels_BT = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    assert model(**inputs, labels=labels_BT).loss.item() < BOUND


SLOW_PROMPTS = ("The harbour", "Once upon a time", "To port a model")


@pytest.mark.parametrize(
    "prompt", ["What is a mesh?", *(pytest.param(prompt, marks=pytest.mark.slow) for prompt in SLOW_PROMPTS)]
)
@torch.inference_mode()
def test_it_speaks_in_words_and_stops(model, tokenizer, prompt):
    inputs = tokenizer(prompt, return_tensors="pt")
    output_BT = model.generate(**inputs, do_sample=False, max_new_tokens=450)
    assert output_BT[0, -1].item() == tokenizer.eos_token_id
    text = tokenizer.decode(output_BT[0], skip_special_tokens=True)
    known = {word for story in train.stories() for word in re.findall(r"\w+", story)}
    assert set(re.findall(r"\w+", text)) <= known, text
