"""transformers' cached methods, which compute anew while torch.compile traces, do so in
our traces, too.
"""

import contextlib
import sys
from collections.abc import Iterator
from unittest import mock

# Has `compile_compatible_method_lru_cache`, which asks this whether to look into its
# cache.
_MODULE = "transformers.pytorch_utils"
_GUARD = "is_torchdynamo_compiling"


@contextlib.contextmanager
def without_caches() -> Iterator[None]:
    """Traced. The caches are shared by all models of a class, so that they would give
    one trace another's values.
    """
    module = sys.modules.get(_MODULE)
    if module is None:
        yield
        return
    with mock.patch.object(module, _GUARD, return_value=True):
        yield
