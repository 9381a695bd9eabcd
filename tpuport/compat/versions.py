"""Which versions are installed, and whether they are known to work together."""

from importlib import metadata


def checked_versions() -> dict[str, str | None]:
    """Installed version of each package that has to agree, None where it is not installed."""
    return {
        name: _installed(name) for name in ("torch", "torchax", "jax", "jaxlib", "libtpu", "transformers")
    }


def check() -> None:
    """Raise when the installed versions cannot work together."""


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
