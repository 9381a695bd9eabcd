"""Known functions on the way to a failure for which there is a patch, and it is not in force."""

from collections.abc import Sequence

from tpuport.errors import PortError
from tpuport.patches.patch import Status
from tpuport.patches.registry import statuses
from tpuport.topology.failures.frames import Frame


def remedy(frames: Sequence[Frame]) -> str:
    """What to do where one of the calls is of a function that an idle patch replaces; "" where none is."""
    called = {f"{frame.module}:{frame.function}" for frame in frames}
    idle = [one for one in _statuses() if one.state != "applied" and one.patch.target in called]
    if not idle:
        return ""
    first = idle[-1]
    target = first.patch.target.partition(":")[2]
    if first.state in ("off", "waiting for import"):
        return (
            f"`import tpuport.auto` before the model's library: tpuport's patch \"{first.patch.name}\" replaces "
            f"{target} ({first.patch.why}), and patches are off"
        )
    said = first.detail.partition("\n")[0] or first.state
    return (
        f'tpuport\'s patch "{first.patch.name}" replaces {target} and is not applied: {said}; `tpuport patches` lists '
        "the versions that patches are for"
    )


def _statuses() -> list[Status]:
    try:
        return statuses()
    except (
        PortError
    ):  # the environment says something of patches that means nothing; told where they are enabled
        return []
