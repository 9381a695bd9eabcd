"""Settings of the linter: `[tool.tpuport.lint]` in the nearest pyproject.toml, and what the command line adds."""

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.lint.diagnostics import known_prefixes, longest
from tpuport.lint.discover import Excluder
from tpuport.lint.findings import Severity

TABLE: Final = "tool.tpuport.lint"
# The torchax that the rules were watched with; `until` of a rule is compared with the target.
DEFAULT_TORCHAX: Final = (0, 0, 13)


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What to look for, where, and how bad it is.

    Attributes:
        select: prefixes of rule ids that are asked; all where it is empty.
        ignore: prefixes that are not; of a prefix in both the longer one wins.
        exclude: patterns of files and directories that are left out, see `Excluder`.
        per_file_ignores: pattern of files to prefixes that are not told there.
        entry_points: further functions that are traced: `package.module:Class.method`, `Class.method`, with `*`.
        severities: prefix of rule ids to "error", "warning" or "info".
        torchax: version that the code is to run with.
        training: gradients are wanted too.
        jobs: processes; 0 for as many as this process may use cores.
        baseline: file of known findings, relative to `root`.
        root: where pyproject.toml is; patterns with a slash start here.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    entry_points: tuple[str, ...] = ()
    severities: tuple[tuple[str, Severity], ...] = ()
    torchax: tuple[int, ...] = DEFAULT_TORCHAX
    training: bool = False
    jobs: int = 0
    baseline: Path | None = None
    root: Path = dataclasses.field(default_factory=Path.cwd)

    def asked(self, id: str) -> bool:  # noqa: A002 - the field's name
        """Whether a rule or diagnostic is asked; what could not be read is told whatever is selected."""
        if id in {"TPU001", "TPU002", "TPU006"}:
            return True
        # Choosing rules by name does not unask what the linter says of itself.
        chosen = 0 if id.startswith("TPU0") else longest(id, self.select or ("ALL",))
        return max(chosen, longest(id, self.select)) > longest(id, self.ignore)

    def severity(self, id: str, default: Severity) -> Severity:  # noqa: A002
        """A finding's severity, where the rule says `default`."""
        fitting = [(len(prefix), severity) for prefix, severity in self.severities if id.startswith(prefix)]
        return max(fitting)[1] if fitting else default

    def ignored_in(self, path: Path) -> tuple[str, ...]:
        """Prefixes that `per-file-ignores` has for a file."""
        excluders = [
            (Excluder((pattern,), self.root), prefixes) for pattern, prefixes in self.per_file_ignores
        ]
        return tuple(prefix for one, prefixes in excluders if one.excludes(path) for prefix in prefixes)


def find_settings(paths: Sequence[str | Path]) -> Settings:
    """Settings of the nearest pyproject.toml with a `[tool.tpuport.lint]` at or above the paths' common directory.

    Raises:
        PortError: it cannot be read, or has an unknown key or a wrong value.
    """
    file = _nearest(common_directory(paths))
    return load(file) if file else Settings(root=Path.cwd())


def common_directory(paths: Sequence[str | Path]) -> Path:
    """The innermost directory that all the paths are below."""
    absolute = [os.path.abspath(path) for path in paths]  # noqa: PTH100 - symbolic links stay
    directories = [path if Path(path).is_dir() else os.path.dirname(path) for path in absolute]  # noqa: PTH120
    return Path(os.path.commonpath(directories)) if directories else Path.cwd()


def _nearest(directory: Path) -> Path | None:
    for parent in (directory, *directory.parents):
        file = parent / "pyproject.toml"
        try:
            if b"tpuport" in file.read_bytes() and _table(file) is not None:
                return file
        except FileNotFoundError:
            continue
        except OSError as error:
            raise PortError(f"the settings cannot be read: {error.strerror}", where=str(file)) from None
    return None


def _table(file: Path) -> dict[str, Any] | None:
    import tomllib

    try:
        content: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PortError(f"this is not TOML: {error}", where=str(file), fix="correct the file") from None
    for key in TABLE.split("."):
        content = content.get(key) if isinstance(content, dict) else None
    if content is not None and not isinstance(content, dict):
        raise PortError("this must be a table", where=f"{file}: {TABLE}", fix=f"write [{TABLE}]")
    return content


def load(file: Path) -> Settings:
    """The settings that a pyproject.toml holds.

    Raises:
        PortError: naming the file and the key.
    """
    values: dict[str, Any] = {"root": file.parent}
    for key, value in (_table(file) or {}).items():
        where = f"{file}: {TABLE}.{key}"
        if key not in _KEYS:
            near = ", ".join(sorted(_KEYS))
            raise PortError(f"there is no setting {key!r}", where=where, fix=f"the settings are {near}")
        field, convert = _KEYS[key]
        values[field] = convert(value, where)
    if values.get("baseline"):
        values["baseline"] = file.parent / values["baseline"]
    return Settings(**values)


def torchax_version(text: str, where: str = "--target") -> tuple[int, ...]:
    """A torchax version out of `torchax==0.0.13` or `0.0.13`.

    Raises:
        PortError: it is neither.
    """
    match = re.fullmatch(r"(?:torchax\s*==\s*)?(\d+(?:\.\d+)*)", text.strip())
    if not match:
        raise PortError(f"{text!r} names no torchax version", where=where, fix="write torchax==0.0.13")
    return tuple(int(part) for part in match.group(1).split("."))


def _strings(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise PortError("this must be a list of strings", where=where, fix='write it as ["...", "..."]')
    return tuple(value)


def _prefixes(value: Any, where: str) -> tuple[str, ...]:
    return known_prefixes(_strings(value, where), where)


def _one(kind: type, name: str) -> Callable[[Any, str], Any]:
    def convert(value: Any, where: str) -> Any:
        if type(value) is not kind or (kind is int and value < 0):
            raise PortError(f"this must be {name}, and is {value!r}", where=where)
        return value

    return convert


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise PortError("this must be a table", where=where, fix=f"write [{where.rpartition(': ')[2]}]")
    return value


def _per_file(value: Any, where: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((key, _prefixes(item, f"{where}.{key}")) for key, item in _mapping(value, where).items())


def _severities(value: Any, where: str) -> tuple[tuple[str, Severity], ...]:
    found: list[tuple[str, Severity]] = []
    for prefix, severity in _mapping(value, where).items():
        if severity not in list(Severity):
            names = ", ".join(Severity)
            raise PortError(
                f"{severity!r} is no severity", where=f"{where}.{prefix}", fix=f"take one of {names}"
            )
        found += [(known, Severity(severity)) for known in known_prefixes((prefix,), where)]
    return tuple(found)


_KEYS: Final[dict[str, tuple[str, Callable[[Any, str], Any]]]] = {
    "select": ("select", _prefixes),
    "ignore": ("ignore", _prefixes),
    "exclude": ("exclude", _strings),
    "per-file-ignores": ("per_file_ignores", _per_file),
    "entry-points": ("entry_points", _strings),
    "severities": ("severities", _severities),
    "target-torchax": (
        "torchax",
        lambda value, where: torchax_version(_one(str, "text")(value, where), where),
    ),
    "training": ("training", _one(bool, "true or false")),
    "jobs": ("jobs", _one(int, "a number of processes")),
    "baseline": ("baseline", _one(str, "the path of a file")),
}
