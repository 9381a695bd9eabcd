"""TPU309: process groups."""

from typing import Final

from tpuport.lint.events import Use
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule

# Queries, classes, options and other submodules need no process group.
_GROUP_FUNCTIONS: Final = frozenset(
    f"torch.distributed.{name}"
    for name in "init_process_group new_group get_rank get_world_size barrier all_reduce all_gather all_gather_object"
    " reduce broadcast broadcast_object_list all_gather_into_tensor reduce_scatter reduce_scatter_tensor"
    " all_to_all all_to_all_single send recv isend irecv scatter gather get_backend"
    " get_process_group_ranks device_mesh.init_device_mesh monitored_barrier init_device_mesh"
    " nn.functional.all_gather nn.functional.all_reduce".split()
)


_SCRIPT: Final = "one process drives all chips of a TPU host: a launcher that starts one per device fails"
_WITHOUT_GROUP: Final = (
    "start one process per host, without a process group; `tpuport.create_mesh` and `tpuport.port` distribute the "
    "model"
)


def check(event: Use, context: Context) -> Answer:
    """A call that needs a process group, in code that does not ask whether there is
    one.
    """
    if event.name not in _GROUP_FUNCTIONS or event.call is None or event.checked:
        return False
    if event.at_import or event.in_init or event.traced:
        return not event.guarded
    # Of a script only the call that starts the processes counts: the others depend on
    # it.
    if event.name == "torch.distributed.init_process_group" and not event.tried:
        return Hit(_SCRIPT, _WITHOUT_GROUP, severity=Severity.WARNING)
    return False


RULE = Rule(
    id="TPU309",
    name="distributed-at-import",
    severity=Severity.ERROR,
    summary="`torch.distributed` process groups at import, in `__init__` or in traced code",
    why="One process drives all chips of a TPU host: there is no process group and no NCCL, and `get_rank()` "
    "or `all_reduce` raise `Default process group has not been initialized`. The sharding rules determine "
    "how tensors are distributed over chips, and XLA inserts the collectives. A call under `if "
    "torch.distributed.is_initialized():` is not reported.",
    reason="there is no process group on TPU: one process drives all chips",
    remedy="guard it with `torch.distributed.is_initialized()`; let `tpuport.port(model, mesh=mesh)` "
    "distribute the weights",
    bad=Example("""
class Model(nn.Module):
    def forward(self, x):
        return x * torch.distributed.get_world_size()
"""),
    good=Example("""
class Model(nn.Module):
    def forward(self, x):
        if torch.distributed.is_initialized():
            return x * torch.distributed.get_world_size()
        return x
"""),
    quiet=(
        # A launcher's function asks whether there is a process group.
        Example("""
import torch.distributed as dist


def setup():
    if not dist.is_initialized():
        dist.init_process_group("nccl")


class Model(nn.Module):
    def forward(self, x):
        return x * 2
"""),
    ),
    events=(Use,),
    check=check,
)
