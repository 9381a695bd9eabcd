"""The patches that tpuport brings."""

from tpuport.patches.patch import Patch

PATCHES: list[Patch] = []
