"""The corpus: what is committed is what the script writes, and it reads as it should."""

import re

import pytest

from recipes.llama import compose

WORDS = {word: number for number, word in enumerate(compose.NUMBERS)}


@pytest.fixture(scope="module")
def stories():
    return compose.compose()


def test_the_committed_file_is_what_the_script_writes(stories):
    assert (compose.CORPUS / "days.txt").read_text(encoding="utf-8") == "\n\n".join(stories) + "\n"


def test_another_seed_tells_other_stories(stories):
    assert set(compose.compose(seed=compose.SEED + 1)) != set(stories)


def test_no_story_is_told_twice(stories):
    assert len(set(stories)) == len(stories)


def test_sums_are_right(stories):
    sums = re.findall(r'"(\w+) and (\w+) is (\w+),"', "\n".join(stories))
    assert len(sums) > 20
    for first, second, total in sums:
        assert WORDS[first.lower()] + WORDS[second] == WORDS[total]


def test_nobody_asks_for_something_of_their_own(stories):
    errands = re.findall(r"(\w+), [\w ]+, needed .* went to (\w+) and asked", "\n".join(stories))
    assert len(errands) > 40
    assert all(who != owner for who, owner in errands)


@pytest.mark.parametrize("name", ["days.txt", "harbour.txt", "machines.txt"])
def test_paragraphs_are_clean_and_fit_the_context(name):
    text = (compose.CORPUS / name).read_text(encoding="ascii")
    for story in text.strip().split("\n\n"):
        assert re.fullmatch(r'[A-Z"].*[.?!"]', story), story
        assert "  " not in story
        assert len(story) < 512


def test_the_corpus_has_its_size():
    size = sum(file.stat().st_size for file in compose.CORPUS.glob("*.txt"))
    assert 60_000 <= size <= 120_000
