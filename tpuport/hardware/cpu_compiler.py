"""What the compiler for CPUs does wrong in some releases of jaxlib, and how it is
avoided.

jaxlib 0.10.2 puts a product and the sum over its rows into one operation of YNNPACK,
which is wrong beyond the 32,768th of between 32,769 and 43,679 vectors of three
numbers. It is right in 0.10.1 and from 0.11.0 on, and products alone are right in all.
"""

import logging
import os
from importlib import metadata
from typing import Final

from tpuport.base.temporary import temporary_environment

logger = logging.getLogger("tpuport")

_FAULTY: Final = ("0.10.2",)
_NAME: Final = "--xla_cpu_experimental_ynn_fusion_type"
# Without those that grow from a sum or a product into what is around it.
_FLAG: Final = f"{_NAME}=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"


def avoid_faults() -> None:
    """Let the compiler for CPUs leave out what it does wrong, unless the user's flags
    decide that; nothing in releases that are right.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    version = metadata.version("jaxlib")
    if version not in _FAULTY or _NAME in flags:
        return
    # This room imports no jax, which takes a second.
    from tpuport.internals.jax_internals import has_started_devices, read_xla_flags

    if has_started_devices():
        import jax

        if jax.default_backend() == "cpu":
            logger.warning(
                "jax was started before tpuport, and jaxlib %s compiles some sums over products wrongly on a CPU: "
                "put `import tpuport.auto` first, or set XLA_FLAGS=%s",
                version, _FLAG,
            )  # fmt: skip
        return
    # XLA reads its flags once. Another release, which a child process may have, might
    # not know this one, and end.
    with temporary_environment("XLA_FLAGS", f"{flags} {_FLAG}".strip()):
        read_xla_flags()
