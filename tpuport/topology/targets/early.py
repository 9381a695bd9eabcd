"""What is wrong with a target, as far as its files and options tell it: needs neither torch nor jax."""

from collections.abc import Mapping
from typing import Any

from tpuport.errors import PortError
from tpuport.topology.targets import configs, naming
from tpuport.topology.targets.configs import Found
from tpuport.topology.targets.images import IMAGES
from tpuport.topology.targets.latents import call_of
from tpuport.topology.targets.target import Options
from tpuport.topology.targets.videos import VIDEOS


def check(target: str, options: Mapping[str, Any]) -> None:
    """Look for what the target names, and at the sizes of the inputs where its config decides on them.

    Args:
        target: as `resolve` takes it; options: its other arguments.

    Raises:
        PortError: a file, directory or module that is not there, a config that is none, or a size that cannot be.
    """
    if (inputs := options["inputs"]) is not None:
        naming.check(inputs)
    if naming.is_code(target):
        naming.check(target)
        return
    found = configs.find(target)
    if inputs is None and "_class_name" in found.raw:
        _check_sizes(found, Options(**{**options, "dtype": None}))


def _check_sizes(found: Found, options: Options) -> None:
    """Of a denoiser; not of one beside an autoencoder, which has a say in it."""
    family = (IMAGES | VIDEOS).get(str(found.raw["_class_name"]))
    if family is None or (found.directory and (found.directory.resolve().parent / "vae").is_dir()):
        return
    options.check_apply(family.applicable(), str(found.raw["_class_name"]))
    try:
        call_of(family, _Told(found.raw), options, "bfloat16", None)
    except PortError:
        raise
    except Exception:  # noqa: BLE001 - fields that are not there, or strange: the class says it in its words
        return


class _Told(dict[str, Any]):
    """A config, without the defaults of its class."""

    def get(self, key: str, default: Any = None) -> Any:
        """The field; nothing takes the place of one that is not there."""
        return self[key]
