"""TPU303: functions of `torch.cuda`."""

import dataclasses
from typing import Final

from tpuport.lint.events import Use
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import gpu_hit
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule

# Without a GPU these answer "no", or do nothing.
_HARMLESS: Final = frozenset(
    "is_available is_bf16_supported is_initialized device_count empty_cache manual_seed manual_seed_all"
    " memory_allocated max_memory_allocated memory_reserved max_memory_reserved reset_peak_memory_stats"
    " ipc_collect seed seed_all is_current_stream_capturing init memory_stats reset_max_memory_allocated"
    " get_arch_list".split()
)
# TPU310 reports these.
_STREAMS: Final = frozenset(
    "Stream stream current_stream default_stream ExternalStream Event StreamContext".split()
)


def check(event: Use, context: Context) -> Answer:
    """A call of a function of `torch.cuda` that fails if there is no GPU."""
    if event.call is None or not event.name.startswith("torch.cuda."):
        return False
    # Any other function is taken to need a GPU: torch keeps adding some.
    function = event.name.removeprefix("torch.cuda.")
    if function == "device_count" and _is_in_script(event):
        return Hit(
            "there are 0 CUDA devices on a TPU machine",
            _DEVICES,
            severity=Severity.WARNING,
        )
    if function in _HARMLESS | _STREAMS or function.startswith("amp."):
        return False
    hit = gpu_hit(event)
    if hit and function.endswith("Tensor"):
        return dataclasses.replace(hit, reason=_TYPE, remedy=_TENSOR)
    return hit


_TYPE: Final = "a tensor of this type is made on the GPU"
_TENSOR: Final = (
    "make it where the model is: `torch.zeros(n, device=x.device)`, or `torch.empty`"
    " or `torch.tensor` with `device=`"
)
_DEVICES: Final = "count TPU devices with `jax.device_count()`, or leave the mesh to `tpuport.create_mesh`"


def _is_in_script(event: Use) -> bool:
    """Whether only host code runs the call, and does not ask for a GPU first."""
    return not (event.checked or event.tried or event.traced or event.in_init)


RULE = Rule(
    id="TPU303",
    name="torch-cuda-api",
    severity=Severity.ERROR,
    summary="a function of `torch.cuda` that needs a GPU",
    why="`torch.cuda.synchronize`, `current_device`, `get_device_capability`, `mem_get_info` and similar "
    "functions ask the CUDA driver, and raise where there is none. jax has its own: `jax.devices()`, "
    "`jax.block_until_ready`, `device.memory_stats()`. Functions that work without a GPU, such as "
    "`is_available`, are not reported. `with tpuport.gpu_shim():` lets code with the others be imported, and its "
    "models be built, as it is.",
    reason="this function of `torch.cuda` raises on a machine without a GPU",
    remedy="remove it, or check `torch.cuda.is_available()` first; jax waits for its results by itself",
    bad=Example("""
class Model(nn.Module):
    def forward(self, x):
        y = x * 2
        torch.cuda.synchronize()
        return y
"""),
    good=Example("""
class Model(nn.Module):
    def forward(self, x):
        return x * 2
"""),
    quiet=(
        # The code asks for a GPU first.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return x * 2
"""),
        # Both functions work without a GPU.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        torch.cuda.empty_cache()
        return x * (1 + torch.cuda.device_count())
"""),
    ),
    harm="cuda",
    events=(Use,),
    check=check,
    fix=Applicability.SAFE,
)
