"""Compiled programs that are kept on disk between runs."""

import os
import re
from pathlib import Path
from typing import Any, Final

import jax

from tpuport.errors import PortError

# What jax and XLA say of a program that is not the one that was asked for.
_OTHER_PROGRAM = re.compile(
    r"safe_zip\(\) argument|INVALID_ARGUMENT: .*RuntimeProgramInputMismatch"
)
# What jax raises for such a program.
CACHE_ERRORS: Final = (ValueError, jax.errors.JaxRuntimeError)


def explain_cache(error: Exception, name: str) -> None:
    """Explain what jax and XLA raise where the directory has the file of another
    program in the place of this one's; nothing happens if the error means something
    else.

    They notice that only by the numbers and shapes of arguments and results.
    """
    settings: Any = jax.config
    message = str(error)
    if not settings.jax_compilation_cache_dir or not _OTHER_PROGRAM.match(message):
        return
    raise PortError(
        "the compiled program that was kept on disk is another one, by its arguments or results",
        where=f"{name}, in {settings.jax_compilation_cache_dir}",
        fix="delete that directory; programs are compiled again",
    ) from error


def use_persistent_cache() -> None:
    """Keep compiled programs on disk between runs, in the user's cache directory.

    A directory that the user has set (JAX_COMPILATION_CACHE_DIR or jax.config) is left
    alone. TPUPORT_COMPILATION_CACHE names another directory, or is "off".
    """
    requested = os.environ.get("TPUPORT_COMPILATION_CACHE", "")
    settings: Any = jax.config
    if requested == "off" or settings.jax_compilation_cache_dir:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jax.config.update(
        "jax_compilation_cache_dir", requested or str(home / "tpuport" / "xla")
    )
