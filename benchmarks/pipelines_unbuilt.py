"""Which classes of pipelines have no row in docs/pipelines.md: by family, with what keeps some of them out."""

import inspect
from collections.abc import Iterable

import diffusers

# By class, from its own code.
REASONS = {
    "BlipDiffusionControlNetPipeline": (
        "its text encoder and its Q-Former are classes of BLIP-Diffusion, which diffusers keeps as deprecated"
    ),
    "DiffusionGemmaPipeline": (
        "it writes text, by its processor's chat template; `generate` of the same model has a row in "
        "[the table of models](coverage.md)"
    ),
    "LEditsPPPipelineStableDiffusion": "a call takes what `invert` of the same pipeline drew for a picture before",
    "LEditsPPPipelineStableDiffusionXL": "a call takes what `invert` of the same pipeline drew for a picture before",
    "LLaDA2Pipeline": "it writes text with a model whose code comes with its checkpoint, and not with diffusers",
}


def exported() -> dict[str, type]:
    """The classes of pipelines that diffusers exports and can import here, by name."""
    base = diffusers.DiffusionPipeline
    classes = {name: getattr(diffusers, name) for name in dir(diffusers) if "Pipeline" in name}
    return {
        name: each
        for name, each in classes.items()
        if inspect.isclass(each) and issubclass(each, base) and each is not base
    }


def section(names: Iterable[str]) -> str:
    """The part of the page about classes without a row.

    Args:
        names: of the rows.
    """
    classes = exported()
    present = {name.partition(":")[0] for name in names}
    missing = sorted(classes.keys() - present)
    deprecated = [name for name in missing if ".deprecated." in classes[name].__module__]
    unbuilt = [name for name in missing if name in REASONS]
    waiting = [name for name in missing if name not in deprecated and name not in unbuilt]
    summary = (
        f"Of {len(classes)} classes of pipelines that diffusers exports, {len(missing)} have no row: {len(waiting)} "
        f"have not been run yet, {len(unbuilt)} are not built here, and {len(deprecated)} are deprecated."
    )
    last = f"Those that diffusers keeps as deprecated, in a folder of its own: {_quoted(deprecated)}."
    lines = [
        "## Not run",
        "",
        summary,
        *_waiting_rows(waiting, present, classes),
        *_unbuilt_rows(unbuilt),
        "",
        last,
    ]
    return "\n".join(lines) + "\n"


def _waiting_rows(names: list[str], present: set[str], classes: dict[str, type]) -> list[str]:
    """What has not been run, beside what was run of the same family."""
    if not names:
        return []
    lines = ["", "| family | not run yet | rows of the same family |", "| --- | --- | --- |"]
    for family in sorted({_family(classes[name]) for name in names}):
        members = [name for name in names if _family(classes[name]) == family]
        siblings = sorted(name for name in present if name in classes and _family(classes[name]) == family)
        lines.append(f"| {family} | {_quoted(members)} | {_quoted(siblings)} |")
    return lines


def _unbuilt_rows(names: list[str]) -> list[str]:
    if not names:
        return []
    rows = [f"| `{name}` | {REASONS[name]} |" for name in names]
    return ["", "| class | why it is not built here |", "| --- | --- |", *rows]


def _family(pipeline_class: type) -> str:
    """The package of diffusers that a class is in, such as "wan"."""
    return pipeline_class.__module__.removeprefix("diffusers.pipelines.").partition(".")[0]


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
