"""Whether the target of a patch is the one that it was written for, by its source."""

from types import ModuleType

from tpuport.errors import PortError
from tpuport.patches import targets
from tpuport.patches.digests import digest
from tpuport.patches.patch import VARIABLE, Patch, Refusal, installed_version


def check_definition(patch: Patch, module: ModuleType) -> targets.Definition:
    """The definition of the target.

    Raises:
        Refusal: it does not exist, or its source is not one that the patch supports.
    """
    library = f"{patch.package} {installed_version(patch.package) or ''}".strip()
    try:
        definition = targets.locate(module, patch.qualname)
    except PortError as error:
        what = f"{library} lacks the function that it replaces: {error.what}"
        raise Refusal(
            "target missing", PortError(what, where=patch.target, fix=error.fix)
        ) from None
    try:
        source = digest(definition.function, definition.holder)
    except PortError as error:
        raise Refusal("source differs", error) from None
    if source not in patch.source:
        what = f"{library} has another source of {patch.target} than the patch was written for"
        raise Refusal(
            "source differs",
            PortError(
                what,
                where=f"patch {patch.name}, digest {source}",
                fix=f"take another version of {patch.package}, or run without the patch: {VARIABLE}=warn",
            ),
        )
    return definition
