"""Patches that replace a function which has failed, and are not in force."""

from collections.abc import Iterable, Sequence

from tpuport.patches.patch import Status


def remedy(calls: Sequence[str], statuses: Iterable[Status]) -> str:
    """What to do if one of the calls is of a function that an idle patch replaces; ""
    if none is.

    Args:
        calls: on the way to a failure, as patches name their targets:
            "package.module:Class.method".
        statuses: of the patches that are registered.
    """
    idle = [
        status
        for status in statuses
        if status.patch.target not in status.places and status.patch.target in calls
    ]
    if not idle:
        return ""
    status = idle[-1]
    patch = status.patch
    function = patch.target.partition(":")[2]
    if status.state in ("off", "waiting for import"):
        return (
            f"`import tpuport.auto` before the model's library: tpuport's patch \"{patch.name}\" replaces "
            f"{function} ({patch.why}), and patches are off"
        )
    reason = status.detail.partition("\n")[0] or status.state
    return (
        f'tpuport\'s patch "{patch.name}" replaces {function} and is not applied: {reason}; `tpuport patches --check` '
        "lists all of them"
    )
