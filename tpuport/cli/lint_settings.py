"""The settings of `tpuport lint`: those of a file, changed by options of the command
line.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuport.cli.arguments import UsageError

if TYPE_CHECKING:
    from tpuport.lint.configuration import Settings


def add_options(group: Any) -> None:
    """The options that change settings."""
    add = group.add_argument
    add(
        "--config",
        action="append",
        metavar="FILE|KEY=VALUE",
        default=[],
        help="a pyproject.toml, or a setting",
    )
    add("--isolated", action="store_true", help="read no pyproject.toml")
    add(
        "--select",
        action="append",
        metavar="IDS",
        default=[],
        help="apply only these rules: TPU101,TPU2",
    )
    add(
        "--extend-select",
        action="append",
        metavar="IDS",
        default=[],
        help="apply these rules too",
    )
    add(
        "--ignore",
        action="append",
        metavar="IDS",
        default=[],
        help="do not apply these rules",
    )
    add(
        "--fixable",
        action="append",
        metavar="IDS",
        default=[],
        help="fix findings of these rules only",
    )
    add(
        "--unfixable",
        action="append",
        metavar="IDS",
        default=[],
        help="do not fix findings of these rules",
    )
    add(
        "--exclude",
        action="append",
        metavar="PATTERN",
        default=[],
        help="leave out these files, and no others",
    )
    add(
        "--extend-exclude",
        action="append",
        metavar="PATTERN",
        default=[],
        help="leave out these files too",
    )
    add(
        "--entry-point",
        action="append",
        metavar="PATTERN",
        default=[],
        help="these functions are traced too",
    )
    add(
        "--training",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether the code computes gradients too",
    )
    add("--target", metavar="torchax==VERSION", help="the torchax that the code is for")


def settings_from(options: argparse.Namespace) -> "Settings":
    """The settings of `--config` or of the nearest pyproject.toml, overridden by the
    other options.

    Raises:
        PortError: a file cannot be read, or a setting is unknown or wrong.
    """
    from tpuport.lint.configuration import parse_torchax_version
    from tpuport.lint.rule_catalogue import normalize_prefixes

    settings = _configured(options)
    # Options that were not given leave the settings as they are.
    changes: dict[str, Any] = {}
    for name in ("select", "ignore", "fixable", "unfixable"):
        prefixes = normalize_prefixes(
            _split_commas(getattr(options, name)), f"--{name}"
        )
        if prefixes:
            # Exceptions add to those of the file, and selections replace its own.
            former = getattr(settings, name) if name in ("ignore", "unfixable") else ()
            changes[name] = (*former, *prefixes)
    extension = normalize_prefixes(
        _split_commas(options.extend_select), "--extend-select"
    )
    if extension:
        # Without a selection, all rules are selected already.
        selected = changes.get("select", settings.select) or ("ALL",)
        changes["select"] = (*selected, *extension)
    if options.exclude:
        changes["exclude"] = _patterns(options.exclude, settings.root)
    if options.extend_exclude:
        excluded = changes.get("exclude", settings.exclude)
        changes["exclude"] = (
            *excluded,
            *_patterns(options.extend_exclude, settings.root),
        )
    if options.entry_point:
        changes["entry_points"] = (*settings.entry_points, *options.entry_point)
    if options.training is not None:
        changes["training"] = options.training
    if options.jobs:
        changes["jobs"] = options.jobs
    if options.target:
        changes["torchax"] = parse_torchax_version(options.target)
    return dataclasses.replace(settings, **changes)


def _configured(options: argparse.Namespace) -> "Settings":
    from tpuport.lint.configuration import (
        Settings,
        find_settings,
        load_settings,
        override_settings,
    )

    files = [config for config in options.config if _is_file(config)]
    inline = [config for config in options.config if not _is_file(config)]
    if len(files) > 1:
        raise UsageError(
            "only one file can be given", where="--config", fix=f"leave out {files[0]}"
        )
    if files and options.isolated:
        raise UsageError(
            "--isolated reads no file, and --config names one",
            where="--config",
            fix="leave out one of them",
        )
    if options.isolated:
        settings = Settings()
    elif files:
        # As in ruff, patterns of a file that is named start at the working directory.
        settings = dataclasses.replace(load_settings(Path(files[0])), root=Path.cwd())
    else:
        settings = find_settings(options.paths)
    for text in inline:
        settings = override_settings(settings, text)
    return settings


def _is_file(config: str) -> bool:
    # A missing file should be reported as one, and not as a wrong setting.
    return Path(config).exists() or "=" not in config


def _patterns(values: Sequence[str], root: Path) -> tuple[str, ...]:
    """Patterns of the command line, which start at the working directory, as patterns
    that start at a root.
    """
    return tuple(_from_root(pattern, root) for pattern in _split_commas(values))


def _from_root(pattern: str, root: Path) -> str:
    directory = Path.cwd()
    if "/" not in pattern.rstrip("/"):
        return pattern
    pattern = pattern.removeprefix("./")
    if directory.is_relative_to(root) and directory != root:
        return f"{directory.relative_to(root).as_posix()}/{pattern}"
    if root.is_relative_to(directory):
        return pattern.removeprefix(f"{root.relative_to(directory).as_posix()}/")
    return pattern


def _split_commas(values: Sequence[str]) -> tuple[str, ...]:
    parts = (part.strip() for part in ",".join(values).split(","))
    return tuple(filter(None, parts))


def describe_settings(settings: "Settings", options: argparse.Namespace) -> str:
    """The settings as a table for pyproject.toml, and the file that they come from."""
    from tpuport.lint.configuration import TABLE, settings_as_toml, settings_file

    source = next(filter(_is_file, options.config), None)
    if source is None and not options.isolated:
        source = settings_file(options.paths)
    return f"# from {source or 'the defaults'}\n[{TABLE}]\n{settings_as_toml(settings)}"
