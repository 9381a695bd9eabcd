"""Which methods of a module are compiled beside its forward."""

import re
from typing import Final

# Methods of modules that are compiled as their forward is: the halves of an
# autoencoder, a flow's other direction.
_COMPILED: Final = frozenset(
    "forward encode decode tiled_encode tiled_decode inverse log_prob".split()
)
# Methods for a kind of input, or for a kind of call: `encode_image`,
# `get_text_features`, `forward_features`.
_VARIANT: Final = re.compile(r"(encode|decode|embed|forward)_\w+|get_\w+_features")

# Methods of modules that loop on the host, and call what is compiled.
LOOPS: Final = frozenset({"generate", "sample"})


def is_compiled_method(name: str) -> bool:
    """Whether a module's method of that name is compiled, if it gets tensors."""
    return name in _COMPILED or _VARIANT.fullmatch(name) is not None
