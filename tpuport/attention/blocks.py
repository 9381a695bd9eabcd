"""Block sizes of the kernel."""


def block_sizes(
    *,
    heads: int,
    queries: int,
    keys: int,
    head_dim: int,
    value_dim: int,
    dtype: str,
    masked: bool,
    blocks: tuple[int, int, int] | None = None,
) -> tuple[int, int, int]:
    """(rows of queries, keys of a step, keys of a chunk of it); `heads` is B * H, `blocks` what a user asks for.

    The generation of TPU is the default device's, or what `assume_generation` says.
    """
    if blocks is not None:
        return blocks
    up = lambda n, most: min(most, -(-n // 128) * 128)  # noqa: E731
    key = up(keys, 2048 if masked else 4096)
    return up(queries, 1024), key, next(c for c in (512, 256, 384, 128) if key % c == 0)


def vmem_limit_bytes() -> int:
    """Vector memory in bytes that the kernel may take on this generation."""
    return 100 << 20
