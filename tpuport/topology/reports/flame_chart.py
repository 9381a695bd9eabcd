"""The time of a step by module, as a flame chart: a bar for each module, and below it
the modules that it contains.
"""

import dataclasses
from html import escape
from typing import Any, Final

from tpuport.topology.reports import estimated_time, quantities
from tpuport.topology.reports.html_markup import kind_class

_ROW_PIXELS: Final = 24
# Narrower bars cannot be seen.
_SMALLEST_SHARE: Final = 0.001


@dataclasses.dataclass
class _Module:
    """A module with what it contains.

    Attributes:
        path: of the model; name: the end of it.
        kinds: seconds by kind, with those of the modules inside.
    """

    path: str
    name: str
    kinds: dict[str, float] = dataclasses.field(default_factory=dict)
    inside: dict[str, "_Module"] = dataclasses.field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return sum(self.kinds.values())

    def add(self, names: list[str], kinds: dict[str, float]) -> None:
        """Add the time of a module at this path below."""
        for kind, seconds in kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0.0) + seconds
        if not names:
            return
        name, *rest = names
        path = f"{self.path}.{name}".removeprefix(".")
        self.inside.setdefault(name, _Module(path, name)).add(rest, kinds)


def flame_chart(profile: dict[str, Any]) -> str:
    """The chart as markup; "" if the model has no modules that take time."""
    whole = _Module("", "a step")
    for module in profile["modules"]:
        # A number belongs to the list that it counts.
        names = module["name"].replace(".*", "*").split(".") if module["name"] else []
        whole.add([name.replace("*", ".*") for name in names], module["kinds"])
    if not whole.inside:
        return ""
    bars: list[str] = []
    depth = _draw(whole, profile, 0.0, 0, bars)
    height = _ROW_PIXELS * (depth + 1)
    return (
        f'<div class="scroll" tabindex="0"><div class="flame" role="img" aria-label="time by module" '
        f'style="height:{height}px">{"".join(bars)}</div></div>'
    )


def _draw(
    module: _Module, profile: dict[str, Any], left: float, depth: int, bars: list[str]
) -> int:
    """Draw a module and those inside, the longest first; the depth of the deepest."""
    whole = profile["seconds"] or 1.0
    width = module.seconds / whole
    kinds = dict(sorted(module.kinds.items(), key=lambda kind: -kind[1]))
    detail = ", ".join(
        f"{kind} {quantities.duration(seconds)}" for kind, seconds in kinds.items()
    )
    share = estimated_time.share(module.seconds, profile)
    title = f"{module.path or module.name}: {quantities.duration(module.seconds)}, {share} ({detail})"
    colour = kind_class(next(iter(kinds), ""))
    bars.append(
        f'<span class="{colour}" title="{escape(title)}" data-seconds="{module.seconds:.6g}" '
        f'style="left:{100 * left:.3f}%;width:{100 * width:.3f}%;top:{depth * _ROW_PIXELS}px">'
        f"{escape(module.name)}</span>"
    )
    deepest = depth
    for inner in sorted(
        module.inside.values(), key=lambda inner: (-inner.seconds, inner.name)
    ):
        if inner.seconds / whole < _SMALLEST_SHARE:
            break
        deepest = max(deepest, _draw(inner, profile, left, depth + 1, bars))
        left += inner.seconds / whole
    return deepest
