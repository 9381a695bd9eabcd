"""Whether the target of a patch is the one that it was written for, by its source."""

from types import ModuleType

from tpuport.errors import PortError
from tpuport.patches import targets
from tpuport.patches.digests import digest as digest
from tpuport.patches.patch import VARIABLE, Refusal, installed_version
from tpuport.patches.patch import Patch as Patch


def check_definition(patch: Patch, module: ModuleType) -> targets.Definition:
    """The definition of the target.

    Raises:
        Refusal: it does not exist, or its source is not one that the patch supports.
    """
    try:
        definition = targets.locate(module, patch.qualname)
    except PortError as error:
        version = _library_version(patch)
        what = f"{version} lacks the function that patch {patch.name!r} replaces: {error.what}"
        fix = error.fix or _remedy_of_other_source(version)
        raise Refusal(
            "target missing", PortError(what, where=patch.target, fix=fix)
        ) from None
    try:
        source = digest(definition.function)
    except PortError as error:
        raise Refusal("source differs", error) from None
    if source not in patch.source:
        version = _library_version(patch)
        what = f"{version} has another source than the one that patch {patch.name!r} was written for"
        fix = _remedy_of_other_source(version)
        raise Refusal(
            "source differs",
            PortError(what, where=f"{patch.target}, digest {source}", fix=fix),
        )
    return definition


def _library_version(patch: Patch) -> str:
    # A patch of a module without a distribution (a research repository) has no version.
    if not patch.package:
        return patch.module
    return f"{patch.package} {installed_version(patch)}"


def _remedy_of_other_source(version: str) -> str:
    return (
        f"reinstall {version} if its files were edited, or take another version of it or of the patch's package; or "
        f'run without the patch: {VARIABLE}=warn, or tpuport.enable(patches="warn")'
    )
