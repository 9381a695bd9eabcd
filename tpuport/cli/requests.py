"""What `tpuport compile` is asked for, checked before anything is imported that takes time."""

import argparse
import difflib
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Final, NoReturn

from tpuport.errors import PortError

AXES: Final = ("dp", "sp", "tp")
# Of a dimension that no axis divides; TOML has no null.
_WHOLE: Final = (None, "", "none", "null")
_TOML: Final = """a line such as '.*q_proj\\.weight' = ["tp", "none"]"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in a sentence, without all options."""

    def error(self, message: str) -> NoReturn:
        found = re.fullmatch(r"argument ([^:]+): (.*)", message, re.DOTALL)
        where, what = found.groups() if found else (None, message)
        raise PortError(
            what, where=where, fix=f"{self._near(what)}tpuport compile --help shows what there is"
        )

    def _near(self, what: str) -> str:
        """What was meant by options that there are none of."""
        unknown = re.findall(r"--[\w-]+", what) if what.startswith("unrecognized") else []
        known = [name for name in self._option_string_actions if name.startswith("--")]
        near = [one for name in unknown for one in difflib.get_close_matches(name, known, n=1)]
        return f"did you mean {' and '.join(near)}? " if near else ""


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = _Parser(
        prog="tpuport compile",
        description="Compile a model for a TPU that is not there: does it fit, what do devices send, what binds it. "
        "No weights are read or made.",
        epilog="Exit code: 0 compiled and fits, 1 does not fit or cannot be traced, 2 could not run.",
        allow_abbrev=False,
    )
    made.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="a directory or config.json of transformers or diffusers, a name of --list-models, or module:function of "
        "your own code",
    )
    _add_place(made.add_argument_group("where it runs"))
    _add_work(made.add_argument_group("what is compiled"))
    _add_output(made.add_argument_group("output"))
    return made


def _add_place(group: Any) -> None:
    add = group.add_argument
    add(
        "--topology",
        action="append",
        metavar="NAME",
        default=[],
        help="a slice such as v5e:2x4; several times for several, one after another",
    )
    add("--tp", type=int, metavar="N", help="devices that share out the weights; all of them by default")
    add("--dp", type=int, metavar="N", help="devices that share out the batch; -1 for what the others leave")
    add("--sp", type=int, metavar="N", help="devices that share out the sequence")
    add("--rules", type=Path, metavar="FILE", help="JSON or TOML: a regex of weights' names to axis names")
    add(
        "--allow",
        action="append",
        metavar="NAME",
        default=[],
        help="a weight, or a rule's pattern, whose errors are accepted: it is whole on every device; repeatable",
    )
    add(
        "--suggest",
        action="store_true",
        help="try mesh splits and rank them; axes that are given stay as they are",
    )
    add("--list-models", action="store_true", help="list the models that are known by name, and stop")
    add("--list-topologies", action="store_true", help="list the TPUs and their figures, and stop")


def _add_work(group: Any) -> None:
    add = group.add_argument
    add("--task", choices=("prefill", "decode", "forward"), help="for models that generate")
    add("--batch", type=_positive, metavar="N", help="rows of the inputs")
    add("--length", type=_positive, metavar="N", help="tokens of the prompt, or of the text")
    add("--max-cache-len", type=_positive, metavar="N", help="positions of the key and value cache")
    add("--image-size", type=_size, metavar="HxW", help="of images and videos, in pixels: 480x832")
    add("--frames", type=_positive, metavar="N", help="of a video")
    add(
        "--dtype",
        choices=("bfloat16", "float32", "float16"),
        help="of weights, the config's by default; of your own code, its buffers and floating inputs too, as "
        "model.to(dtype) and inputs.to(dtype) make them; leave it out, and cast there, where an input stays float32",
    )
    add("--attention", choices=("flash", "xla"), help="what computes attention")
    add("--component", metavar="NAME", help="of a pipeline's directory; each of them by default")
    add("--inputs", metavar="MODULE:FUNCTION", help="returns the inputs to compile for")
    add("--trust-remote-code", action="store_true", help="run code that the directory holds")
    add(
        "--scan-layers",
        action=argparse.BooleanOptionalAction,
        help="run identical blocks in one loop; by default where that is known to win",
    )
    add("--effort", type=_effort, metavar="E", help="of the compiler, -1 to 1; -1 is several times sooner")


def _add_output(group: Any) -> None:
    add = group.add_argument
    add("--format", choices=("text", "json", "html"), default="text", help="how the report is written")
    add("--output", type=Path, metavar="FILE", help="write the report there")
    add("--save-hlo", type=Path, metavar="DIR", help="write the compiled programs there")
    add("--traceback", action="store_true", help="show what Python or the compiler said of a failure")
    add("--no-cache", action="store_true", help="compile again what is known, and keep nothing")


def request_of(options: argparse.Namespace) -> dict[str, Any]:
    """What a process that compiles is told, as `topology.job` describes it, but for the topology and the mesh.

    Raises:
        PortError: an option that cannot be, or no target.
    """
    if options.target is None or not options.topology:
        raise PortError(
            "no target was given" if options.target is None else "no topology was given",
            where="TARGET" if options.target is None else "--topology",
            fix="tpuport compile path/to/config.json --topology v5e:2x4; --list-topologies shows them all",
        )
    from tpuport.topology.targets import early_checks

    names = "task batch length max_cache_len image_size frames dtype inputs component trust_remote_code"
    said = {name: getattr(options, name) for name in names.split()}
    early_checks.check(options.target, said)
    return {
        "target": options.target,
        "options": said,
        "rules": None if options.rules is None else rules_of(options.rules),
        "rules_from": None if options.rules is None else f"--rules {options.rules}",
        "allow": options.allow,
        "attention": options.attention,
        "scan_layers": options.scan_layers,
        "effort": options.effort,
        "suggest": given(options) if options.suggest else None,
        "cache": not options.no_cache,
        "save_hlo": None,
    }


def given(options: argparse.Namespace) -> dict[str, int]:
    """The axes of the mesh whose size was said."""
    sizes = {axis: getattr(options, axis) for axis in AXES}
    return {axis: size for axis, size in sizes.items() if size not in (None, -1)}


def meshes_of(
    names: Sequence[str], asked: dict[str, int] | None, kept: dict[str, int] | None = None
) -> dict[str, dict[str, int]]:
    """The axis sizes of the mesh over each topology, by its full name: tp over all devices where none were asked for.

    Args:
        kept: where splits are to be suggested, the sizes that stay: another axis takes what they leave.

    Raises:
        PortError: there is no such topology, or its devices are not those that the mesh takes.
    """
    from tpuport.hardware import parse_slice

    slices = {requested.name: requested for requested in map(parse_slice, names)}
    if kept and len(kept) == len(AXES):
        where = " ".join(f"--{axis} {size}" for axis, size in kept.items())
        raise PortError(
            "with every axis given, nothing is left to vary",
            where=f"--suggest {where}",
            fix="leave an axis or --suggest out",
        )
    if kept and (free := next((axis for axis in ("tp", "dp", "sp") if axis not in kept), None)) is not None:
        asked = {**dict.fromkeys(AXES, 1), **kept, free: -1}
    return {name: _mesh_over(requested.devices, asked, name) for name, requested in slices.items()}


def _mesh_over(devices: int, asked: dict[str, int] | None, topology: str) -> dict[str, int]:
    if asked is None:
        return {"dp": 1, "sp": 1, "tp": devices}
    rest = next((axis for axis, size in asked.items() if size == -1), None)
    known = prod(size for size in asked.values() if size != -1)
    if rest is not None and devices % known == 0:
        return {**asked, rest: devices // known}
    if rest is None and known == devices:
        return asked
    count = f"{known} device{'s' * (known > 1)}"
    raise PortError(
        f"the mesh takes {count if rest is None else 'a multiple of ' + count}, and {topology} has {devices}",
        where=" ".join(f"--{axis} {size}" for axis, size in asked.items() if size != 1) or "--tp 1",
        fix=f"choose --dp, --sp and --tp whose product is {devices}, or leave them out for --tp {devices}",
    )


def rules_of(file: Path) -> dict[str, list[Any]]:
    """Sharding rules of a file: a regex of weights' names to one entry a dimension, each None, an axis or a list.

    Raises:
        PortError: the file cannot be read, or something in it is no rule.
    """
    where, kind = f"--rules {file}", "TOML" if file.suffix == ".toml" else "JSON"
    try:
        text = file.read_text(encoding="utf-8")
        found = tomllib.loads(text) if kind == "TOML" else json.loads(text)
    except OSError as error:
        fix = 'give a JSON or TOML file such as {".*q_proj\\\\.weight": ["tp", null]}'
        raise PortError(f"the rules cannot be read: {error.strerror}", where=where, fix=fix) from None
    except ValueError as error:
        fix = f"correct the file; {'a name that ends in .toml is read as TOML' if kind == 'JSON' else _TOML}"
        raise PortError(f"the rules are no {kind}: {error}", where=where, fix=fix) from None
    if not isinstance(found, dict) or not found:
        raise PortError(
            "the rules are no map of patterns to axis names",
            where=where,
            fix='write an object such as {".*q_proj\\\\.weight": ["tp", null]}',
        )
    return {pattern: _spec(pattern, spec, f"{where}: '{pattern}'") for pattern, spec in found.items()}


def _spec(pattern: str, spec: Any, where: str) -> list[Any]:
    try:
        re.compile(pattern)
    except re.error as error:
        fix = "a pattern is a Python regex for the whole parameter name; escape dots as '\\.'"
        raise PortError(f"the pattern is no regular expression: {error}", where=where, fix=fix) from None
    fix = (
        'entries are "dp", "sp", "tp", a list of them, or null for a dimension that is whole, one a dimension: '
        '["tp", null]; in TOML, which has no null, "none" says the same: ["tp", "none"]'
    )
    if not isinstance(spec, list):
        raise PortError(f"{spec!r} is no list of axis names", where=where, fix=fix)
    for entry in spec:
        for name in entry if isinstance(entry, list) and entry else [entry]:
            if name not in (*_WHOLE, *AXES):
                raise PortError(f"{name!r} is no axis of the mesh", where=where, fix=fix)
    return [None if entry == [] or entry in _WHOLE else entry for entry in spec]


def sizes_of(options: argparse.Namespace) -> dict[str, int] | None:
    """Axis sizes that were asked for, of which one may be -1; None where none were.

    Raises:
        PortError: a size that none can be.
    """
    asked = {axis: getattr(options, axis) for axis in AXES}
    if all(size is None for size in asked.values()):
        return None
    for axis, size in asked.items():
        if size is not None and size != -1 and size < 1:
            raise PortError(
                f"a mesh axis has at least one device, not {size}",
                where=f"--{axis}",
                fix="a number from 1 up, or -1 for what the other axes leave",
            )
    if list(asked.values()).count(-1) > 1:
        raise PortError(
            "only one axis can take what the others leave", where=" ".join(f"--{axis}" for axis in AXES)
        )
    return {axis: 1 if size is None else size for axis, size in asked.items()}


def check_output(file: Path) -> None:
    """PortError unless the report can be written there, before hours of work say so."""
    where, directory = f"--output {file}", file.resolve().parent
    fix = "name a file in a directory that can be written to"
    if not directory.is_dir():
        raise PortError(
            f"there is no directory {directory}", where=where, fix=f"mkdir -p {directory}, or {fix}"
        )
    if file.is_dir():
        raise PortError("this is a directory", where=where, fix=fix)
    try:
        if file.exists() and not os.access(file, os.W_OK):
            raise PermissionError(13, "the file is read-only")
        with tempfile.NamedTemporaryFile(prefix=".tpuport-", dir=directory):
            pass
    except OSError as error:
        raise PortError(
            f"the report cannot be written there: {error.strerror}", where=where, fix=fix
        ) from None


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 up")
    return int(text)


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: height and width, 480x832, or 512 for both")
    return int(found[1]), int(found[2] or found[1])


def _effort(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 2.0
    if not -1 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from -1 to 1")
    return value
