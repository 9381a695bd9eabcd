"""Training: every story is read, the loss falls, a seed fixes the model, and it is saved whole."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from recipes.llama import tokenizer, train

TOLD = ["The boat goes out.", "The boat comes home.", "The lamp is lit."]


@pytest.fixture
def few_stories(monkeypatch):
    """Three stories in place of the corpus, and a smaller model: Muon computes in bfloat16, which not every CPU has."""
    config = train.model_config()
    config.update({"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2})
    config.head_dim = 8
    monkeypatch.setattr(train, "model_config", lambda: config)
    monkeypatch.setattr(train, "stories", lambda: TOLD)


def test_a_story_begins_at_its_first_byte_with_its_mark_or_at_a_word():
    generator, story = torch.Generator().manual_seed(0), TOLD[1]
    read = [train.lesson(story, generator).tolist() for _ in range(60)]
    assert all(tokens[-1] == tokenizer.EOS_ID for tokens in read)
    marked = [tokens[1:] for tokens in read if tokens[0] == tokenizer.BOS_ID]
    begun = {bytes(tokens[:-1]).decode() for tokens in marked}
    assert begun == {story}
    others = {bytes(tokens[:-1]).decode() for tokens in read if tokens[0] != tokenizer.BOS_ID}
    assert others == {story, "boat comes home.", "comes home."}


def test_one_epoch_reads_every_story_of_the_corpus_once():
    texts = train.stories()
    drawn = train.batches(texts, 4, torch.Generator().manual_seed(0))
    rows = [row for _ in range(math.ceil(len(texts) / 4)) for row in next(drawn).tolist()]
    ends = [bytes(token for token in row if token < 256).decode()[-20:] for row in rows]
    assert sorted(ends) == sorted(text[-20:] for text in texts)


def test_stories_in_a_batch_are_of_like_length():
    drawn = train.batches(train.stories(), 4, torch.Generator().manual_seed(0))
    padding = torch.cat([(next(drawn) == tokenizer.PAD_ID).flatten() for _ in range(80)])
    assert padding.float().mean() < 0.2


def test_the_rate_rises_and_falls_to_zero():
    rates = [train.rate(step, 100) for step in range(101)]
    assert max(rates) == rates[train.WARMUP - 1]
    assert rates[-1] == 0.0
    assert all(
        later < earlier
        for earlier, later in zip(rates[train.WARMUP :], rates[train.WARMUP + 1 :], strict=False)
    )


@pytest.mark.usefixtures("few_stories")
def test_the_loss_falls(capsys, monkeypatch):
    monkeypatch.setattr(train, "WARMUP", 2)
    model = train.train(steps=32, batch=3, seed=0)
    assert train.corpus_loss(model) < 0.5 * math.log(256)
    assert "step 32/32" in capsys.readouterr().out


@pytest.mark.usefixtures("few_stories")
def test_the_same_seed_gives_the_same_model():
    first, second, other = (train.train(2, 1, seed).model.embed_tokens.weight for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.usefixtures("few_stories")
def test_what_is_saved_is_loaded_by_transformers(tmp_path):
    model = train.train(1, 1, 0)
    train.save(model, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())
    assert AutoTokenizer.from_pretrained(tmp_path)("a")["input_ids"] == [97]
    assert GenerationConfig.from_pretrained(tmp_path).eos_token_id == tokenizer.EOS_ID
