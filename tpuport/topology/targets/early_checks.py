"""What is wrong with a target, as far as its files and options show it. Needs neither
torch nor jax.
"""

import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.topology.targets.config_files import ConfigFile, find_config
from tpuport.topology.targets.denoiser_calls import plan_call
from tpuport.topology.targets.image_denoisers import IMAGES
from tpuport.topology.targets.target import Options
from tpuport.topology.targets.video_denoisers import VIDEOS

# "package.module:function" or "path/to/file.py:function".
FUNCTION_NAME: Final = re.compile(
    r"(?P<module>.+\.py|[A-Za-z_]\w*(\.\w+)*):(?P<function>[A-Za-z_]\w*)"
)


def check(target: str, options: Mapping[str, Any]) -> None:
    """Look for what the target names, and check the sizes of the inputs that its config
    determines.

    Args:
        target: as `resolve` takes it; options: its other arguments.

    Raises:
        PortError: a file, directory or module does not exist, a config is not one, or a
            size is impossible.
    """
    inputs = options["inputs"]
    if inputs is not None:
        _check_function_name(inputs)
    if is_user_code(target):
        _check_function_name(target)
        return
    config_file = find_config(target)
    if inputs is None and "_class_name" in config_file.raw:
        _check_sizes(config_file, Options(**{**options, "dtype": None}))


def is_user_code(target: str) -> bool:
    """Whether this names a function, or a file of Python code."""
    return bool(FUNCTION_NAME.fullmatch(target)) or target.endswith(".py")


def split_function_name(name: str) -> tuple[str, str]:
    """The module or file, and the function.

    Raises:
        PortError: this does not name a function.
    """
    match = FUNCTION_NAME.fullmatch(name)
    if match is None:
        raise PortError(
            "this does not name a function",
            where=name,
            fix="module:function, or path/to/file.py:function",
        )
    return match["module"], match["function"]


def check_python_file(path: Path) -> None:
    """PortError unless the file exists."""
    if not path.is_file():
        raise PortError("there is no such file", where=str(path), fix="check the path")


def missing_module(name: str) -> PortError:
    """The error for a module that cannot be found."""
    return PortError(
        f"there is no module {name!r}", where=str(Path.cwd()),
        fix="run where it can be imported, or give path/to/file.py:function",
    )  # fmt: skip


def _check_function_name(name: str) -> None:
    """PortError if the file, package or module does not exist; none of its code is
    run.
    """
    module, _ = split_function_name(name)
    if module.endswith(".py"):
        check_python_file(Path(module))
    elif not _package_exists(module.partition(".")[0]):
        raise missing_module(module)


def _package_exists(package: str) -> bool:
    """Whether a package can be imported from the current directory, as far as that is
    known without running it.
    """
    entry = str(Path.cwd())
    sys.path.insert(0, entry)
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # it is imported, and does not say from where
        return True
    finally:
        sys.path.remove(entry)


def _check_sizes(config_file: ConfigFile, options: Options) -> None:
    """PortError for sizes that a denoiser cannot have; an autoencoder beside it would
    have a say in them.
    """
    class_name = str(config_file.raw["_class_name"])
    family = (IMAGES | VIDEOS).get(class_name)
    if family is None or (config_file.directory.resolve().parent / "vae").is_dir():
        return
    options.check_apply(family.applicable(), class_name)
    try:
        plan_call(family, _WithoutDefaults(config_file.raw), options, "bfloat16", None)
    except PortError:
        raise
    except Exception:  # noqa: BLE001 - of missing or strange fields, which the class reports better
        return


class _WithoutDefaults(dict[str, Any]):
    """A config whose missing fields are errors: the class's own defaults are not known
    here.
    """

    def get(self, key: str, default: Any = None) -> Any:
        """The field; `default` is ignored."""
        return self[key]
