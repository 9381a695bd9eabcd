"""Compiled programs of ported models: their weights are arguments, and what is compiled
again is counted.
"""

from tpuport.compilation.arguments.cache_arguments import (
    claim_cache,
    refuse_retired,
    resume_cache,
)
from tpuport.compilation.arguments.call_arguments import prepare_arguments
from tpuport.compilation.compile_api import compile
from tpuport.compilation.compiled_function import CompiledFunction
from tpuport.compilation.function_programs import FunctionPrograms
from tpuport.compilation.lost_values import (
    LostValue,
    WrittenInLoop,
    use_weights_in_loop,
)
from tpuport.compilation.model_weights import (
    check_constants,
    collect_weights,
    settings_key,
    use_weights,
)
from tpuport.compilation.programs.compiled_program import Program
from tpuport.compilation.programs.interrupted_caches import cleared_if_spoiled
from tpuport.compilation.programs.persistent_cache import use_persistent_cache
from tpuport.compilation.replaced_forward import ReplacedForward
from tpuport.compilation.shared_tensors import keep_shared

__all__ = [
    "CompiledFunction",
    "FunctionPrograms",
    "LostValue",
    "Program",
    "ReplacedForward",
    "WrittenInLoop",
    "check_constants",
    "claim_cache",
    "cleared_if_spoiled",
    "collect_weights",
    "compile",
    "keep_shared",
    "prepare_arguments",
    "refuse_retired",
    "resume_cache",
    "settings_key",
    "use_persistent_cache",
    "use_weights",
    "use_weights_in_loop",
]  # fmt: skip
