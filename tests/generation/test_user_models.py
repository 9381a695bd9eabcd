"""`generate` for language models that are not transformers', compared with their own loops on the CPU."""

import copy
import logging
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from jax.sharding import PartitionSpec
from torch import nn
from transformers import StoppingCriteria

import tpuport
from tpuport import PortError
from tpuport.generation import decoder_for

VOCABULARY, WIDTH, HEADS, LENGTH = 40, 32, 4, 96
LAYERS = 1
PROMPTS = [[5, 9, 33, 2, 17, 8, 21], [7], [11, 12, 13]]


class Cache:
    """Keys and values of each layer, and a count that the model moves on."""

    def __init__(self, length: int) -> None:
        self.k = [torch.zeros(1, HEADS, length, WIDTH // HEADS) for _ in range(LAYERS)]
        self.v = [torch.zeros(1, HEADS, length, WIDTH // HEADS) for _ in range(LAYERS)]
        self.pos = torch.zeros((), dtype=torch.int32)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, cache: Cache | None, layer: int) -> torch.Tensor:
        rows, n, _ = x.shape
        heads = (rows, n, HEADS, WIDTH // HEADS)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        if cache is None:
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            columns = cache.pos + torch.arange(n, device=x.device)
            cache.k[layer].index_copy_(2, columns, k)
            cache.v[layer].index_copy_(2, columns, v)
            mask = torch.arange(cache.k[layer].shape[2], device=x.device)[None] <= columns[:, None]
            y = nn.functional.scaled_dot_product_attention(q, cache.k[layer], cache.v[layer], attn_mask=mask)
        x = x + self.proj(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """In the manner of nanoGPT."""

    def __init__(self, length: int = LENGTH) -> None:
        super().__init__()
        self.length = length
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(length, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(
        self, tokens: torch.Tensor, cache: Cache | None = None, everything: bool = True
    ) -> torch.Tensor:
        assert tokens.shape[1] <= self.length
        first = 0 if cache is None else cache.pos
        x = self.tokens(tokens) + self.positions(first + torch.arange(tokens.shape[1], device=tokens.device))
        for layer, block in enumerate(self.blocks):
            x = block(x, cache, layer)
        return self.head(self.norm(x if everything else x[:, [-1]]))

    @torch.no_grad()
    def sample(self, prompt: list[int], count: int, eos: int | None = None) -> list[int]:
        """The loop that such code has: crops, no cache, greedy."""
        tokens = torch.tensor([prompt])
        for _ in range(count):
            token = self(tokens[:, -self.length :])[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, token], dim=1)
            if token.item() == eos:
                break
        return tokens[0].tolist()


def make(length: int = LENGTH) -> GPT:
    torch.manual_seed(3)
    model = GPT(length).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.6 if "tokens" in name or "positions" in name else 0.3)
    return model


def describe(model: nn.Module, cached: bool, **options: Any) -> tpuport.LanguageModel:
    """What a user writes."""
    options = {"vocab_size": VOCABULARY, "max_length": LENGTH} | options
    if not cached:
        return tpuport.LanguageModel(model, **options)

    def forward(tokens: torch.Tensor, cache: Cache, position: torch.Tensor) -> torch.Tensor:
        cache.pos = position
        return model(tokens, cache)

    return tpuport.LanguageModel(model, forward=forward, make_cache=Cache, **options)


@pytest.fixture(scope="module")
def reference() -> GPT:
    return make()


@pytest.fixture(scope="module", params=["cache", "window"])
def described(request: pytest.FixtureRequest, reference: GPT) -> tpuport.LanguageModel:
    return describe(tpuport.port(copy.deepcopy(reference)), request.param == "cache")


# What does not depend on how the logits are computed.
mostly_cached = pytest.mark.parametrize(
    "described", ["cache", pytest.param("window", marks=pytest.mark.slow)], indirect=True
)


# Without a cache, `test_a_window_moves_on_where_a_cache_ends` does the same.
@mostly_cached
def test_greedy_tokens_are_those_of_the_models_own_loop(reference: GPT, described: Any) -> None:
    expected = [reference.sample(prompt, 24) for prompt in PROMPTS]
    assert len({tuple(row[-8:]) for row in expected}) == 3, "rows that say the same prove little"
    assert [row.tolist() for row in tpuport.generate(described, PROMPTS, max_new_tokens=24)] == expected


@pytest.mark.slow  # the rows above, which do not depend on each other
@mostly_cached
def test_a_row_alone_is_what_it_is_among_others(reference: GPT, described: Any) -> None:
    expected = [reference.sample(PROMPTS[0], 24)]
    alone = described.generate(torch.tensor(PROMPTS[:1]), max_new_tokens=24)
    assert alone.tolist() == expected


@pytest.mark.slow  # test_beam_search.py, and the caches of rows of the test above
def test_beams_take_their_caches_with_them(reference: GPT) -> None:
    """A model without a cache has none to mix up."""
    ported = tpuport.port(copy.deepcopy(reference))
    options = {"max_new_tokens": 8, "num_beams": 3, "num_return_sequences": 3}
    cached, window = (describe(ported, is_cached, check=False) for is_cached in (True, False))
    expected = tpuport.generate(window, PROMPTS, **options)
    assert [row.tolist() for row in tpuport.generate(cached, PROMPTS, **options)] == [
        row.tolist() for row in expected
    ]
    greedy = [reference.sample(prompt, 8) for prompt in PROMPTS]
    assert [row.tolist() for row in expected[::3]] != greedy, "one beam finds the same: the test shows little"


@mostly_cached
def test_other_lengths_and_settings_compile_nothing(reference: GPT, described: Any) -> None:
    tpuport.generate(described, PROMPTS, max_new_tokens=24)
    decoder = decoder_for(described)
    before = decoder.prefill.compilations, decoder.advance.compilations
    prompts = [PROMPTS[2], PROMPTS[0][:5], PROMPTS[1] * 9]
    rows = tpuport.generate(described, prompts, max_new_tokens=20)
    assert [row.tolist() for row in rows] == [reference.sample(prompt, 20) for prompt in prompts]
    sampled = tpuport.generate(
        described, prompts, max_new_tokens=20, do_sample=True, temperature=0.7, top_k=5
    )
    assert [len(row) for row in sampled] == [len(prompt) + 20 for prompt in prompts]
    assert (decoder.prefill.compilations, decoder.advance.compilations) == before


class Streamer:
    def __init__(self) -> None:
        self.columns: list[torch.Tensor] = []

    def put(self, tokens: torch.Tensor) -> None:
        self.columns.append(tokens)

    def end(self) -> None:
        self.columns.append(torch.tensor(-1))


class Stop(StoppingCriteria):
    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids.shape[1] >= 12 and torch.ones(len(input_ids), dtype=torch.bool)


@pytest.mark.slow  # test_generating.py has each of them; the loop of the host does not know whose model it is
def test_ends_streams_criteria_and_seeds(reference: GPT, described: Any) -> None:
    plain = [reference.sample(prompt, 24) for prompt in PROMPTS]
    eos = plain[0][12]
    expected = [reference.sample(prompt, 24, eos) for prompt in PROMPTS]
    rows = tpuport.generate(described, PROMPTS, max_new_tokens=24, eos_token_id=eos)
    assert [row.tolist() for row in rows] == expected
    streamer = Streamer()
    tokens = tpuport.generate(described, torch.tensor(PROMPTS[:1]), streamer=streamer, max_new_tokens=24)
    assert [token.item() for token in streamer.columns[1:-1]] == plain[0][7:] == tokens[0, 7:].tolist()
    stopped = tpuport.generate(
        described, torch.tensor(PROMPTS[:1]), max_new_tokens=24, stopping_criteria=[Stop()]
    )
    assert stopped.tolist() == [plain[0][:12]]
    options = {"max_new_tokens": 24, "do_sample": True, "num_return_sequences": 2}
    first, again, other = (tpuport.generate(described, PROMPTS, seed=seed, **options) for seed in (1, 1, 2))
    assert len(first) == 6
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, other))
    assert not torch.equal(first[0], first[1])


@pytest.mark.slow  # tests/sharding/inference/test_own_models.py, and the loop on a mesh in test_sharded.py
@pytest.mark.parametrize("cached", [True, False])
def test_on_a_mesh(reference: GPT, cached: bool) -> None:
    rules = tpuport.ShardingRules({
        r"blocks\..*\.(qkv|up)\.weight": PartitionSpec("tp", None),
        r"blocks\..*\.(proj|down)\.weight": PartitionSpec(None, "tp"),
        ".*": PartitionSpec(),
    })  # fmt: skip
    mesh = tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4])
    model = tpuport.port(copy.deepcopy(reference), mesh=mesh, rules=rules)
    rows = tpuport.generate(describe(model, cached, check=False), PROMPTS, max_new_tokens=16)
    assert [row.tolist() for row in rows] == [reference.sample(prompt, 16) for prompt in PROMPTS]


@pytest.mark.slow  # the cache above, within its length
def test_a_window_moves_on_where_a_cache_ends() -> None:
    reference = make(length=16)
    model = tpuport.port(copy.deepcopy(reference))
    rows = tpuport.generate(
        describe(model, cached=False, max_length=16, check=False), PROMPTS, max_new_tokens=24
    )
    assert [row.tolist() for row in rows] == [reference.sample(prompt, 24) for prompt in PROMPTS]
    with pytest.raises(PortError, match="7 tokens and 24 new ones do not fit max_length = 16"):
        tpuport.generate(describe(model, cached=True, max_length=16, check=False), PROMPTS, max_new_tokens=24)
    # The bucket of a prompt is longer than the model's positions.
    rows = tpuport.generate(
        describe(model, cached=True, max_length=16, check=False), PROMPTS, max_new_tokens=9
    )
    assert [row.tolist() for row in rows] == [reference.sample(prompt, 9) for prompt in PROMPTS]


def _forgets_position(model: GPT) -> tpuport.LanguageModel:
    return tpuport.LanguageModel(
        model,
        vocab_size=VOCABULARY,
        make_cache=Cache,
        forward=lambda tokens, cache, position: model(tokens, cache),
    )


def _shifts_by(offset: int) -> Callable[[GPT], tpuport.LanguageModel]:
    """A model whose every position is a wrong one, so that it agrees with itself."""

    def build(model: GPT) -> tpuport.LanguageModel:
        def forward(tokens: torch.Tensor, cache: Cache, position: torch.Tensor) -> torch.Tensor:
            cache.pos = position + offset
            return model(tokens, cache)

        return tpuport.LanguageModel(model, vocab_size=VOCABULARY, make_cache=Cache, forward=forward)

    return build


def _counts_in_python(model: GPT) -> tpuport.LanguageModel:
    def forward(tokens: torch.Tensor, cache: Cache, position: torch.Tensor) -> torch.Tensor:
        cache.pos = position
        cache.calls = getattr(cache, "calls", 0) + 1
        return model(tokens, cache)

    return tpuport.LanguageModel(model, vocab_size=VOCABULARY, make_cache=Cache, forward=forward, check=False)


def _grows(model: GPT) -> tpuport.LanguageModel:
    def forward(tokens: torch.Tensor, cache: Any, position: torch.Tensor) -> torch.Tensor:
        cache["seen"] = torch.cat([cache["seen"], tokens], dim=1)
        return model(cache["seen"])[:, -tokens.shape[1] :]

    def make_cache(length: int) -> dict:
        return {"seen": torch.zeros(1, 0, dtype=torch.int32)}

    return tpuport.LanguageModel(
        model, vocab_size=VOCABULARY, make_cache=make_cache, forward=forward, check=False
    )


class Backwards(nn.Module):
    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(tokens.flip(1)).flip(1)


MISTAKES: dict[str, tuple[Callable[[GPT], Any], str]] = {
    "bare": (lambda model: model, r"(?s)LanguageModel, and this is a GPT.*LanguageModel\(model, "),
    "tuple": (
        lambda model: describe(model, False, forward=lambda t: (model(t), None)), r"(?s)returns a tuple.*\)\[0\]"
    ),
    "last": (
        lambda model: describe(model, False, forward=lambda t: model(t, None, False)),
        r"(?s)\[2, 1, 40\] for tokens \[2, 6\].*targets=tokens",
    ),
    "vocabulary": (lambda model: describe(model, False, vocab_size=41), r"\[2, 6, 40\].*\[2, 6, 41\]"),
    "position": (_forgets_position, "(?s)not give the same logits token by token.*position"),
    "next position": (_shifts_by(1), r"(?s)position 2 to column 3 of cache\.k\.0.*cache\.pos = position"),
    "position before": (_shifts_by(-1), r"(?s)position 2 to column 1 of cache\.k\.0"),
    "position beyond": (_shifts_by(70), r"(?s)to no column of cache\.k\.0; cache\.pos is 72 after it"),
    "backwards": (lambda model: describe(tpuport.port(Backwards(model)), False), "depend on tokens that come later"),
    "python": (_counts_in_python, r"(?s)a token changes cache\.calls from 1 to 2.*cache\.pos = position"),
    "grows": (_grows, r"(?s)a token changes cache\.seen from int32\(1, 32\) to int32\(1, 33\)"),
}  # fmt: skip


# "next position" is found by the same comparison as the other positions, and "python" by that of what grows.
SLOW_MISTAKES = ("position before", "position beyond", "next position", "grows")


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(mistake, marks=[pytest.mark.slow] if mistake in SLOW_MISTAKES else [])
        for mistake in MISTAKES
    ],
)
def test_mistakes_are_named(mistake: str) -> None:
    build, message = MISTAKES[mistake]
    with pytest.raises(PortError, match=message):
        tpuport.generate(build(tpuport.port(make())), PROMPTS, max_new_tokens=4)


def test_a_description_for_each_call_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model = tpuport.port(make())
    with caplog.at_level(logging.WARNING, "tpuport"):
        for count in range(3):
            assert not caplog.text, count
            decoder_for(describe(model, False, check=False))
    assert "a GPT for 3 LanguageModels. Make one" in caplog.text


@mostly_cached
def test_a_hole_in_a_prompt_is_refused(described: Any) -> None:
    with pytest.raises(PortError, match=r"(?s)masked tokens among them.*rows \[0\]"):
        tpuport.generate(described, torch.tensor([[1, 2, 3]]), torch.tensor([[1, 0, 1]]), max_new_tokens=2)
