"""torchax's dispatch mode without the import of torch.compile's code, which takes two seconds of a process's start."""

import inspect
import sys
from typing import Any

from tpuport.compat.operators.declarations import Method
from tpuport.compat.replacements import original


def _torch_dispatch(self: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Runs an operation as torchax does.

    torch keeps Dynamo from tracing through dispatch modes by a wrapper, which imports Dynamo when it is first called.
    Where nothing else has imported it, nothing can be traced by it.
    """
    dispatch = original("XLADispatchMode", "__torch_dispatch__")
    if "torch._dynamo" not in sys.modules:
        dispatch = inspect.unwrap(dispatch)
    return dispatch(self, function, types, args, kwargs)


LOWERINGS = ()
METHODS = (
    Method(
        "XLADispatchMode",
        "__torch_dispatch__",
        _torch_dispatch,
        "imports torch.compile's code on its first call",
    ),
)
