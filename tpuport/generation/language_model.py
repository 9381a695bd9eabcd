"""`tpuport.LanguageModel`: what `generate` needs to know about a model that is not
transformers'.
"""

import types
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from tpuport.errors import PortError


class LanguageModel:
    """A decoder of your own, with what `tpuport.generate` needs beside it.

    With a cache, each row of a batch runs by itself, under `jax.vmap`: `forward` gets
    the tokens [1, n] of one row, the cache of that row, and the position of the first
    of the tokens, an integer tensor without dimensions. It returns logits
    [1, n, vocab_size]. It writes keys and values to the columns from `position` on, and
    attends to no column after a token's own; `generate` may have it write tokens there
    that are written again later.

    Without a cache, `forward` gets tokens [rows, n], and returns logits
    [rows, n, vocab_size] of all positions, each of which depends on no later one. All
    tokens so far run for each new one, `max_length` at most.

    Args:
        model: an nn.Module that has been ported, which the functions below use.
        vocab_size: how many logits there are.
        max_length: positions that the model knows; None if there is no limit.
        forward: as above; None for the model itself.
        make_cache: gives an empty cache of one row, with room for as many positions as
            its argument says: any object with tensors in it. None for a model without a
            cache.
        check: whether the first call of `generate` verifies with a few tokens that
            `forward` keeps these promises.

    `described.generate(...)` is `tpuport.generate(described, ...)`.

    Raises:
        PortError: the model is not an nn.Module, or a size is not positive.
    """

    # As a method, `tpuport.generate`, which sets it: that module imports this one.
    generate: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        vocab_size: int,
        max_length: int | None = None,
        forward: Callable[..., Any] | None = None,
        make_cache: Callable[[int], Any] | None = None,
        check: bool = True,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise PortError(
                f"LanguageModel takes an nn.Module, and this is a {type(model).__name__}",
                where="model",
            )
        sizes = {
            "vocab_size": vocab_size,
            "max_length": 1 if max_length is None else max_length,
        }
        wrong = [
            f"{name}={size!r}"
            for name, size in sizes.items()
            if not isinstance(size, int) or size < 1
        ]
        if wrong:
            raise PortError("sizes are integers from 1 on", where=", ".join(wrong))
        self.model = model
        self.vocab_size = vocab_size
        self.max_length = max_length
        self.make_cache = make_cache
        self.check = check
        self._forward = model if forward is None else forward

    @property
    def config(self) -> Any:
        """What the options of `generate` are read with."""
        return types.SimpleNamespace(
            max_position_embeddings=self.max_length, is_encoder_decoder=False
        )

    def limit(self, columns: int) -> int:
        """As many columns, but not more than the model knows positions."""
        return columns if self.max_length is None else min(columns, self.max_length)

    def logits(self, tokens: torch.Tensor, *cache_and_position: Any) -> torch.Tensor:
        """Traced. Logits of all positions of tokens [rows, n].

        Raises:
            PortError: `forward` returns something else.
        """
        logits = self._forward(tokens, *cache_and_position)
        expected = (*tokens.shape, self.vocab_size)
        if not isinstance(logits, torch.Tensor):
            raise PortError(
                f"forward returns a {type(logits).__name__}, and not logits",
                where=type(self.model).__name__,
                fix=f"take them out: LanguageModel(..., forward={self._example('[0]')})",
            )
        if tuple(logits.shape) != expected:
            raise PortError(
                f"forward returns {list(logits.shape)} for tokens {list(tokens.shape)}, and not logits of every "
                f"position, {list(expected)}",
                where=type(self.model).__name__,
                fix="return them all: tpuport takes those that it needs. A model that gives only the last ones unless "
                "it has targets gives all with forward=lambda tokens: model(tokens, targets=tokens)[0]",
            )
        return logits

    def _example(self, suffix: str) -> str:
        names = "tokens" if self.make_cache is None else "tokens, cache, position"
        return f"lambda {names}: model({names}){suffix}"
