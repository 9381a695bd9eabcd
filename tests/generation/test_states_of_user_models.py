"""Caches of a user's own model with something beside columns, against the user's own loop in eager torch."""

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tpuport
from tpuport import PortError

VOCABULARY, WIDTH = 40, 16
PROMPTS = [[5, 9, 33, 2, 17, 8, 21], [7], [11, 12, 13]]


class Mixer(nn.Module):
    """One layer that reads the tokens before through what `kind` keeps of them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.mix, self.taps = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.zeros(4, WIDTH))

    def forward(self, tokens: torch.Tensor, cache: Any, position: Any) -> torch.Tensor:
        x = self.embed(tokens)
        return self.head(torch.tanh(self.mix(getattr(self, self.kind)(x, tokens, cache, position))))

    def shift(self, x: torch.Tensor, tokens: torch.Tensor, cache: Any, position: Any) -> torch.Tensor:
        """As RWKV: each token sees the one before."""
        before = torch.cat([cache["last"][:, None], x[:, :-1]], dim=1)
        cache["last"] = x[:, -1]
        return x + 0.5 * before

    def convolution(self, x: torch.Tensor, tokens: torch.Tensor, cache: Any, position: Any) -> torch.Tensor:
        """As Mamba: the last three tokens and this one."""
        whole = torch.cat([cache["window"], x], dim=1)
        cache["window"] = whole[:, -3:]
        return (whole.unfold(1, 4, 1) * self.taps.T).sum(-1)

    def total(self, x: torch.Tensor, tokens: torch.Tensor, cache: Any, position: Any) -> torch.Tensor:
        """A sum so weak that a few tokens too many in it change the logits little."""
        sums = cache["sum"][:, None] + torch.cumsum(x, dim=1)
        cache["sum"] = sums[:, -1]
        return x + 0.02 * sums

    def counted(self, x: torch.Tensor, tokens: torch.Tensor, cache: Any, position: Any) -> torch.Tensor:
        """The position by a count of its own."""
        places = cache["count"] + torch.arange(tokens.shape[1], device=tokens.device)
        cache["count"] = cache["count"] + tokens.shape[1]
        return x * torch.cos(places)[:, None]

    def ring(self, x: torch.Tensor, tokens: torch.Tensor, cache: Any, position: Any) -> torch.Tensor:
        """The mean of the last eight tokens, in a ring that is longer than the check."""
        outputs = []
        for index in range(tokens.shape[1]):
            slot = (position + index) % 8
            cache["ring"] = cache["ring"].index_copy(1, slot.reshape(1).long(), x[:, index : index + 1])
            outputs.append(cache["ring"].mean(dim=1))
        return x + 4 * torch.stack(outputs, dim=1)

    def ids(self, x: torch.Tensor, tokens: torch.Tensor, cache: Any, position: Any) -> torch.Tensor:
        """The tokens themselves, in columns of integers."""
        columns = position + torch.arange(tokens.shape[1], device=tokens.device)
        cache["ids"].index_copy_(1, columns.long(), tokens.to(cache["ids"].dtype))
        seen = torch.arange(cache["ids"].shape[1], device=tokens.device)[None] <= columns[:, None]
        return x + (self.embed(cache["ids"]) * seen[..., None]).sum(1, keepdim=True).swapaxes(0, 1)[0] * 0.3


MAKERS: dict[str, Callable[[int], Any]] = {
    "shift": lambda length: {"last": torch.zeros(1, WIDTH)},
    "convolution": lambda length: {"window": torch.zeros(1, 3, WIDTH)},
    "total": lambda length: {"sum": torch.zeros(1, WIDTH)},
    "counted": lambda length: {"count": torch.zeros((), dtype=torch.int32)},
    "ring": lambda length: {"ring": torch.zeros(1, 8, WIDTH)},
    "ids": lambda length: {"ids": torch.zeros(1, length, dtype=torch.int64)},
}


def _make(kind: str) -> Mixer:
    torch.manual_seed(1)
    model = Mixer(kind).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    return model


@torch.no_grad()
def _own_loop(model: Mixer, prompt: list[int], count: int) -> list[int]:
    cache = MAKERS[model.kind](64)
    text, new = list(prompt), list(prompt)
    for _ in range(count):
        position = torch.tensor(len(text) - len(new))
        logits = model(torch.tensor([new]), cache, position)
        new = [int(logits[0, -1].argmax())]
        text += new
    return text


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("kind", MAKERS)
def test_padding_advances_no_state(kind: str, check: bool, caplog: pytest.LogCaptureFixture) -> None:
    reference = _make(kind)
    prompts = [*PROMPTS, [3, 1, 4, 15, 9, 26] * 2] if kind == "ring" else PROMPTS
    expected = [_own_loop(reference, prompt, 12) for prompt in prompts]
    assert len({tuple(row[-6:]) for row in expected}) > 1, "rows that say the same prove little"
    described = tpuport.LanguageModel(
        tpuport.port(copy.deepcopy(reference)), vocab_size=VOCABULARY, max_length=64,
        make_cache=MAKERS[kind], check=check,
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, "tpuport"):
        rows = tpuport.generate(described, prompts, max_new_tokens=12)
    assert [row.tolist() for row in rows] == expected
    assert ("beside the columns of its cache" in caplog.text) == (kind != "ids")


def test_a_state_that_disagrees_with_itself_is_refused() -> None:
    model = tpuport.port(_make("shift"))

    def forward(tokens: torch.Tensor, cache: Any, position: Any) -> torch.Tensor:
        cache["last"] = cache["last"] * 0
        return model(tokens, cache, position)

    described = tpuport.LanguageModel(
        model, vocab_size=VOCABULARY, max_length=64, make_cache=MAKERS["shift"], forward=forward
    )
    with pytest.raises(
        PortError, match=r"(?s)as at once, with cache\.last in its cache beside columns.*than your own loop"
    ):
        tpuport.generate(described, PROMPTS, max_new_tokens=2)
