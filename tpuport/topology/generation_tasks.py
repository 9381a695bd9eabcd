"""What of a model's work is compiled: one call, the prompt of a generation, or one token after it."""

import dataclasses

from tpuport.errors import PortError


@dataclasses.dataclass(frozen=True)
class Prefill:
    """The prompt [batch, length] of a generation, and the first token chosen; makes a cache of `max_cache_len`.

    None for `max_cache_len` is `length`, rounded up as `generate` does.
    """

    batch: int = 1
    length: int = 1024
    max_cache_len: int | None = None

    def __post_init__(self) -> None:
        _positive(self)
        if self.max_cache_len is not None and self.max_cache_len < self.length:
            raise PortError(
                f"a prompt of {self.length} tokens is longer than the cache",
                where=f"max_cache_len={self.max_cache_len}",
                fix=f"max_cache_len={self.length} at least",
            )


@dataclasses.dataclass(frozen=True)
class Decode:
    """One new token for each of `batch` rows, whose cache has room for `max_cache_len` positions."""

    batch: int = 1
    max_cache_len: int = 1024

    def __post_init__(self) -> None:
        _positive(self)


def _positive(task: Prefill | Decode) -> None:
    for field in dataclasses.fields(task):
        value = getattr(task, field.name)
        if value is not None and value < 1:
            raise PortError(f"{field.name} is {value}", where=type(task).__name__, fix="a number from 1 up")
