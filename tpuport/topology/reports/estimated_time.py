"""What a profile amounts to, in words: the time of a step, its rate, and where the
cycles come from.
"""

from typing import Any, Final

from tpuport.topology.reports import quantities

# Of a step, for the matrix units: where they have less to do, their peak is not a
# measure of it.
_LEAST_SHARE: Final = 0.01


def kinds(profile: dict[str, Any]) -> dict[str, float]:
    """Seconds by kind, the longest first."""
    return dict(sorted(profile["kinds"].items(), key=lambda kind: -kind[1]))


def main_kind(part: dict[str, Any]) -> str:
    """The kind of work that takes most of a part's time."""
    return max(part["kinds"], key=part["kinds"].__getitem__, default="")


def share(seconds: float, profile: dict[str, Any]) -> str:
    """A part of a step: "12.5%"."""
    # A program that does nothing takes no time.
    return f"{seconds / (profile['seconds'] or 1.0):.1%}"


def facts(report: dict[str, Any]) -> dict[str, str]:
    """What is said below the kinds: a step, what it produces in a second, MFU, and the
    source of the cycles.
    """
    profile, estimate = report["profile"], report["estimate"]
    texts = {"a step": _step(profile, estimate)}
    if profile["matrix_units"] >= _LEAST_SHARE * profile["seconds"] > 0:
        texts["matrix units"] = _matrix_units(profile)
    if rate := units_per_second(report):
        texts[estimate["unit"]] = f"{quantities.plain_number(rate)} a second"
    if profile["seconds"]:
        texts["MFU"] = (
            f"{estimate['mfu'] * estimate['seconds'] / profile['seconds']:.1%}"
        )
    texts["cycles"] = _cycles(profile["schedule_share"])
    return texts


def units_per_second(report: dict[str, Any]) -> float | None:
    """What the whole mesh produces in a second; None if nothing is counted, or takes no
    time.
    """
    units, seconds = report["estimate"]["units"], report["profile"]["seconds"]
    if not (units and seconds):
        return None
    return units / seconds


def headline(target: str, topology: str, report: dict[str, Any]) -> str:
    """One line: "llama-2-7b decodes at 312 tokens a second on v5e:2x4"."""
    rate = units_per_second(report)
    if rate is None:
        step = quantities.duration(report["profile"]["seconds"])
        return f"{quantities.title(target, topology, report)}: {step} a step"
    pace = f"{quantities.plain_number(rate)} {report['estimate']['unit']} a second"
    if report["task"] == "decode":
        return f"{target.removesuffix(' decode')} decodes at {pace} on {topology}"
    return f"{quantities.title(target, topology, report)}: {pace}"


def _step(profile: dict[str, Any], estimate: dict[str, Any]) -> str:
    text = quantities.duration(profile["seconds"])
    if not estimate["seconds"]:
        return text
    return f"{text}, {quantities.plain_number(profile['seconds'] / estimate['seconds'])} x the roofline"


def _matrix_units(profile: dict[str, Any]) -> str:
    distance = quantities.plain_number(profile["seconds"] / profile["matrix_units"])
    return f"{quantities.duration(profile['matrix_units'])} for the same products at their peak; a step is {distance} x"


def _cycles(schedule_share: float) -> str:
    if schedule_share == 1.0:
        return "by the schedules of the compiled program"
    if schedule_share == 0.0:
        return "by the compiler's own estimates: it wrote no schedules"
    return f"{schedule_share:.1%} by the schedules of the compiled program, the rest by the compiler's own estimates"
