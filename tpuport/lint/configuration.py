"""The linter's settings: `[tool.tpuport.lint]` in the nearest pyproject.toml, and
options of the command line.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from tpuport.errors import PortError
from tpuport.lint.diagnostics import ALWAYS_ENABLED, DIAGNOSTIC_PREFIX
from tpuport.lint.findings import Severity
from tpuport.lint.paths import common_directory
from tpuport.lint.patterns import Excluder
from tpuport.lint.regular_files import read_regular_file
from tpuport.lint.rule_catalogue import longest_match, normalize_prefixes

_T = TypeVar("_T")

TABLE: Final = "tool.tpuport.lint"
# The torchax that the rules' claims were tested with; a rule's `until` is compared with
# the target.
DEFAULT_TORCHAX: Final = (0, 0, 13)


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What to look for, where, and how severe it is.

    Attributes:
        select: prefixes of the rule ids to report; all rules if it is empty.
        ignore: prefixes not to report; if both lists match an id, the longer prefix
            wins.
        fixable: prefixes of the rule ids to fix; all rules if it is empty.
        unfixable: prefixes not to fix; the longer prefix wins here too.
        exclude: patterns of files and directories to leave out, see `Excluder`.
        per_file_ignores: pattern of files, and the prefixes not to report there.
        entry_points: further functions that are traced: `package.module:Class.method`,
            `Class.method`, with `*`.
        patched: functions that a patch replaces, written as in `entry_points`: what
            they contain is not traced.
        severities: prefix of rule ids to "error", "warning" or "info".
        torchax: version that the code will run with.
        training: the code computes gradients too.
        jobs: number of processes; 0 for the number of cores that this process may use.
        baseline: file of known findings, relative to `root`.
        root: the directory of pyproject.toml; patterns with a slash start here.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fixable: tuple[str, ...] = ()
    unfixable: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    entry_points: tuple[str, ...] = ()
    patched: tuple[str, ...] = ()
    severities: tuple[tuple[str, Severity], ...] = ()
    torchax: tuple[int, ...] = DEFAULT_TORCHAX
    training: bool = False
    jobs: int = 0
    baseline: Path | None = None
    root: Path = dataclasses.field(default_factory=Path.cwd)

    def is_enabled(self, id: str) -> bool:  # noqa: A002 - the field's name
        """Whether a rule or diagnostic is reported."""
        if id in ALWAYS_ENABLED:
            return True
        selected = longest_match(id, self.select or ("ALL",))
        # Selecting rules by name does not deselect the linter's own diagnostics.
        if id.startswith(DIAGNOSTIC_PREFIX):
            selected = max(selected, 0)
        return selected > longest_match(id, self.ignore)

    def may_fix(self, id: str) -> bool:  # noqa: A002 - the field's name
        """Whether findings of a rule are fixed."""
        return longest_match(id, self.fixable or ("ALL",)) > longest_match(
            id, self.unfixable
        )

    def severity(self, id: str, default: Severity) -> Severity:  # noqa: A002 - the field's name
        """A finding's severity, `default` being the rule's."""
        matches = [
            (len(prefix), severity)
            for prefix, severity in self.severities
            if id.startswith(prefix)
        ]
        _, severity = max(matches, default=(0, default))
        return severity

    def ignored_in(self, path: Path) -> tuple[str, ...]:
        """The prefixes that `per-file-ignores` lists for a file."""
        matching = [
            prefixes
            for pattern, prefixes in self.per_file_ignores
            if Excluder((pattern,), self.root).excludes(path)
        ]
        return tuple(itertools.chain.from_iterable(matching))


def find_settings(paths: Sequence[str | Path]) -> Settings:
    """Settings of the nearest pyproject.toml with a `[tool.tpuport.lint]` at or above
    the paths' common directory.

    Raises:
        PortError: the file cannot be read, or has an unknown key or a wrong value.
    """
    file = settings_file(paths)
    return load_settings(file) if file is not None else Settings()


def settings_file(paths: Sequence[str | Path]) -> Path | None:
    """The nearest pyproject.toml with a `[tool.tpuport.lint]`; None if there is none.

    Raises:
        PortError: a file on the way cannot be read.
    """
    directory = common_directory(paths)
    files = (parent / "pyproject.toml" for parent in (directory, *directory.parents))
    # The nearest file may be about other tools only.
    return next(filter(_has_table, files), None)


def _has_table(file: Path) -> bool:
    try:
        # The search in the bytes spares most files the import of tomllib and the
        # parsing.
        return b"tpuport" in read_regular_file(file) and _read_table(file) is not None
    except FileNotFoundError:
        return False
    except OSError as error:
        raise PortError(
            f"the settings cannot be read: {error.strerror}", where=str(file)
        ) from None


def _read_table(file: Path) -> dict[str, Any] | None:
    import tomllib

    try:
        content: Any = tomllib.loads(read_regular_file(file).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PortError(
            f"this is not TOML: {error}", where=str(file), fix="correct the file"
        ) from None
    except RecursionError:
        reason = "the tables and lists are nested too deeply"
        raise PortError(reason, where=str(file), fix="correct the file") from None
    for key in TABLE.split("."):
        content = content.get(key) if isinstance(content, dict) else None
    if content is not None and not isinstance(content, dict):
        raise PortError(
            "this must be a table", where=f"{file}: {TABLE}", fix=f"write [{TABLE}]"
        )
    return content


def load_settings(file: Path) -> Settings:
    """The settings in a pyproject.toml.

    Raises:
        PortError: naming the file and the key.
    """
    values = _converted(_read_table(file) or {}, f"{file}: {TABLE}.")
    if values.get("baseline"):
        values["baseline"] = file.parent / values["baseline"]
    return Settings(**values, root=file.parent)


def override_settings(
    settings: Settings, text: str, where: str = "--config"
) -> Settings:
    """The settings with those in a line of TOML, such as `severities.TPU5 = "info"`, in
    their stead.

    Raises:
        PortError: the text is not TOML, or has an unknown key or a wrong value.
    """
    import tomllib

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        fix = "write KEY=VALUE as in pyproject.toml, or name a file"
        raise PortError(
            f"{text!r} is not a setting: {error}", where=where, fix=fix
        ) from None
    values = _converted(table, f"{where} ")
    if values.get("baseline"):
        values["baseline"] = Path(values["baseline"])
    return dataclasses.replace(settings, **values)


def _converted(table: dict[str, Any], where: str) -> dict[str, Any]:
    """The fields of `Settings` that a table sets."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _CONVERTERS:
            known_keys = ", ".join(sorted(_CONVERTERS))
            fix = f"the settings are {known_keys}"
            raise PortError(
                f"there is no setting {key!r}", where=f"{where}{key}", fix=fix
            )
        field, convert = _CONVERTERS[key]
        values[field] = convert(value, f"{where}{key}")
    return values


def settings_as_toml(settings: Settings) -> str:
    """All settings, defaults included, as a table of pyproject.toml would have them."""
    fields = {key: getattr(settings, field) for key, (field, _) in _CONVERTERS.items()}
    fields["target-torchax"] = f"torchax=={'.'.join(map(str, settings.torchax))}"
    if settings.baseline is None:
        del fields["baseline"]
    lines = [f"{key} = {_toml_value(value)}" for key, value in fields.items()]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    import json

    match value:
        case tuple([(str(), _), *_]):
            pairs = [
                f"{json.dumps(name)} = {_toml_value(item)}" for name, item in value
            ]
            return "{ " + ", ".join(pairs) + " }"
        case tuple():
            return "[" + ", ".join(map(_toml_value, value)) + "]"
        case bool() | int():
            return json.dumps(value)
        case _:
            # A string of JSON is one of TOML.
            return json.dumps(str(value), ensure_ascii=False)


def parse_torchax_version(text: str, where: str = "--target") -> tuple[int, ...]:
    """The torchax version in `torchax==0.0.13` or `0.0.13`.

    Raises:
        PortError: the text is neither.
    """
    match = re.fullmatch(r"(?:torchax\s*==\s*)?(\d+(?:\.\d+)*)", text.strip())
    if not match:
        raise PortError(
            f"{text!r} is not a torchax version",
            where=where,
            fix="write torchax==0.0.13",
        )
    return tuple(int(part) for part in match.group(1).split("."))


# --- converters of the TOML values: each returns the setting, or raises a PortError
# that says where ---


def _strings(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(
        isinstance(item, str) and item for item in value
    ):
        raise PortError(
            "this must be a list of strings",
            where=where,
            fix='write it as ["...", "..."]',
        )
    return tuple(value)


def _prefixes(value: Any, where: str) -> tuple[str, ...]:
    return normalize_prefixes(_strings(value, where), where)


def _instance(value: Any, where: str, kind: type[_T], description: str) -> _T:
    if not isinstance(value, kind):
        raise PortError(f"this must be {description}, and is {value!r}", where=where)
    return value


def _process_count(value: Any, where: str) -> int:
    # TOML's true would pass for the integer 1.
    if type(value) is not int or value < 0:
        raise PortError(
            f"this must be a number of processes, and is {value!r}", where=where
        )
    return value


def _torchax(value: Any, where: str) -> tuple[int, ...]:
    return parse_torchax_version(_instance(value, where, str, "text"), where)


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PortError(
            "this must be a table",
            where=where,
            fix=f"write [{where.rpartition(': ')[2]}]",
        )
    return value


def _per_file_ignores(
    value: Any, where: str
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(
        (pattern, _prefixes(item, f"{where}.{pattern}"))
        for pattern, item in _table(value, where).items()
    )


def _severities(value: Any, where: str) -> tuple[tuple[str, Severity], ...]:
    severities: list[tuple[str, Severity]] = []
    for prefix, name in _table(value, where).items():
        if name not in list(Severity):
            remedy = f"use one of {', '.join(Severity)}"
            raise PortError(
                f"{name!r} is not a severity", where=f"{where}.{prefix}", fix=remedy
            )
        (normalized,) = normalize_prefixes((prefix,), where)
        severities.append((normalized, Severity(name)))
    return tuple(severities)


# The field of `Settings`, and the converter, of each key of the table.
_CONVERTERS: Final[dict[str, tuple[str, Callable[[Any, str], Any]]]] = {
    "select": ("select", _prefixes),
    "ignore": ("ignore", _prefixes),
    "fixable": ("fixable", _prefixes),
    "unfixable": ("unfixable", _prefixes),
    "exclude": ("exclude", _strings),
    "per-file-ignores": ("per_file_ignores", _per_file_ignores),
    "entry-points": ("entry_points", _strings),
    "patched": ("patched", _strings),
    "severities": ("severities", _severities),
    "target-torchax": ("torchax", _torchax),
    "training": (
        "training",
        functools.partial(_instance, kind=bool, description="true or false"),
    ),
    "jobs": ("jobs", _process_count),
    "baseline": (
        "baseline",
        functools.partial(_instance, kind=str, description="the path of a file"),
    ),
}
