"""The parts of a generation that can be compiled on their own: the prompt, or one token
after it.
"""

import dataclasses

from tpuport.base.mappings import without
from tpuport.errors import PortError


@dataclasses.dataclass(frozen=True)
class Prefill:
    """The prompt [batch, length] of a generation and its first token; creates a cache
    of `max_cache_len` positions.

    None for `max_cache_len` is `length`, rounded up as `generate` does it. `kv_cache`
    is as in `generate`.
    """

    batch: int = 1
    length: int = 1024
    max_cache_len: int | None = None
    kv_cache: str | None = None

    @property
    def positions(self) -> int:
        """Positions of the model that it needs."""
        # A cache longer than the prompt is for the tokens that decoding adds.
        return self.max_cache_len or self.length

    def __post_init__(self) -> None:
        _check_positive(self)
        if self.positions < self.length:
            raise PortError(
                f"a prompt of {self.length} tokens is longer than the cache",
                where=f"max_cache_len={self.max_cache_len}",
                fix=f"set max_cache_len to {self.length} or more",
            )


@dataclasses.dataclass(frozen=True)
class Decode:
    """One new token for each of `batch` rows, whose cache has room for `max_cache_len`
    positions.

    `kv_cache` is as in `generate`.
    """

    batch: int = 1
    max_cache_len: int = 1024
    kv_cache: str | None = None

    @property
    def positions(self) -> int:
        """Positions of the model that it needs."""
        return self.max_cache_len

    def __post_init__(self) -> None:
        _check_positive(self)


def _check_positive(task: Prefill | Decode) -> None:
    if task.kv_cache is not None:
        # It imports torch, which most calls do not need.
        from tpuport.generation.option_values import check_kv_cache

        check_kv_cache(task.kv_cache)
    sizes = without(vars(task), {"kv_cache"})
    for name, value in sizes.items():
        # None is a default that depends on the other fields.
        if value is not None and value < 1:
            raise PortError(
                f"{name} is {value}",
                where=type(task).__name__,
                fix="use a positive number",
            )
