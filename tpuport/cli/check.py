"""`tpuport check`: a model run in torch and on the device, and everything that stops it
or differs.
"""

import argparse
import os
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tpuport.base.mappings import without_nones
from tpuport.cli import compile_request
from tpuport.cli.arguments import (
    CommandParser,
    UsageError,
    non_negative_integer,
    positive_integer,
)
from tpuport.cli.compile_request import check_report
from tpuport.cli.console import ProgressLine, print_text, say, write_file
from tpuport.cli.mesh_options import AXES
from tpuport.sharding.rules_format import read_rules

if TYPE_CHECKING:
    from tpuport.topology.compile_messages import CompileRequest
    from tpuport.verification import CheckResult

# Options that `targets.resolve` takes, for a config.
_TARGET_OPTIONS: Final = (
    "batch",
    "length",
    "image_size",
    "frames",
    "dtype",
    "component",
    "trust_remote_code",
)
# As many as the slices have on which most models run; a mesh that is smaller takes the
# first of them.
_VIRTUAL_DEVICES: Final = 8


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = CommandParser(
        prog="tpuport check",
        description="Run a model in torch and compiled through tpuport, on this CPU, and report every line that stops "
        "it or computes something else than torch.",
        epilog="Exit code: 0 nothing to change, 1 findings, 2 could not run.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="module:function or file.py:function that returns (model, inputs), or a directory or config.json of "
        "transformers or diffusers",
    )
    _add_mesh(parser.add_argument_group("also on a mesh of virtual devices"))
    _add_inputs(parser.add_argument_group("for a config"))
    add = parser.add_argument_group("output").add_argument
    add(
        "--format",
        choices=("text", "json", "html"),
        default="text",
        help="how the report is written",
    )
    add("--output", type=Path, metavar="FILE", help="write the report there")
    return parser


def _add_mesh(group: Any) -> None:
    add = group.add_argument
    add(
        "--tp",
        type=positive_integer,
        metavar="N",
        help="devices that divide the weights",
    )
    add(
        "--dp", type=positive_integer, metavar="N", help="devices that divide the batch"
    )
    add(
        "--sp",
        type=positive_integer,
        metavar="N",
        help="devices that divide the sequence",
    )
    add(
        "--topology",
        action="append",
        metavar="NAME",
        default=[],
        help="also compile it with the TPU's compiler for a slice such as v5e:2x4; repeatable",
    )
    add(
        "--rules",
        type=Path,
        metavar="FILE",
        help="JSON or TOML: regexes of weights' names to axis names",
    )


def _add_inputs(group: Any) -> None:
    add = group.add_argument
    add("--batch", type=positive_integer, metavar="N", help="rows of the inputs")
    add("--length", type=positive_integer, metavar="N", help="tokens; 16 by default")
    add("--image-size", metavar="HxW", help="of images and videos, in pixels: 480x832")
    add("--frames", type=positive_integer, metavar="N", help="of a video")
    add(
        "--dtype",
        choices=("bfloat16", "float32"),
        help="of weights; the config's by default",
    )
    add("--component", metavar="NAME", help="of a pipeline's directory")
    add(
        "--trust-remote-code",
        action="store_true",
        help="run code that the directory contains",
    )
    add(
        "--seed",
        type=non_negative_integer,
        default=0,
        metavar="N",
        help="of random weights and inputs",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; the exit code is 0, 1 for findings, 2 if the check could not
    run.
    """
    if options.target is None:
        raise UsageError(
            "no target was given", where="TARGET", fix="tpuport check mine.py:function"
        )
    check_report(options.format, options.output)
    sizes_by_axis = {axis: getattr(options, axis) for axis in AXES}
    sizes = without_nones(sizes_by_axis)
    rules = None
    if options.rules is not None:
        if not sizes:
            raise UsageError(
                "rules are for a mesh, and none was given",
                where="--rules",
                fix="add --tp 8",
            )
        rules = read_rules(options.rules, f"--rules {options.rules}", AXES)
    prepare_devices(prod(sizes.values()))
    # A slice or mesh that is not possible is an error before the model runs.
    requests = _compile_requests(options)
    result = _check(options, sizes, rules)
    for request in requests:
        # It needs jax, which may start only after `prepare_devices`.
        from tpuport.verification.topology_verdict import compile_target

        result = result.extended(*compile_target(request))
    _write(result, options)
    return int(not result.ok)


def prepare_devices(count: int = 1) -> None:
    """Let jax start with enough virtual devices on the CPU, which can be said only
    before it is imported.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # A number that the user has set stays.
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        number = max(count, _VIRTUAL_DEVICES)
        os.environ["XLA_FLAGS"] = (
            f"{flags} --xla_force_host_platform_device_count={number}".strip()
        )


def _check(
    options: argparse.Namespace,
    sizes: dict[str, int],
    rules: dict[str, list[Any]] | None,
) -> "CheckResult":
    import jax

    import tpuport
    from tpuport.sharding import ShardingRules
    from tpuport.verification import check
    from tpuport.verification.check_target import load_target
    from tpuport.verification.progress import told_to

    # Before the model's code is imported, as a script does it.
    tpuport.enable()
    mesh = None
    if sizes:
        mesh = tpuport.create_mesh(
            **sizes, devices=jax.devices()[: prod(sizes.values())]
        )
    target = load_target(
        options.target,
        {name: getattr(options, name) for name in _TARGET_OPTIONS},
        options.seed,
    )
    for note in target.notes:
        say(f"note: {note}")
    sharding = None
    if rules is not None:
        sharding = ShardingRules.of_entries(rules)
    with ProgressLine("check") as line, told_to(line.show):
        return check(target.model, target.inputs, mesh=mesh, rules=sharding)


def _compile_requests(options: argparse.Namespace) -> "list[CompileRequest]":
    """What `tpuport compile` would be asked with the same options, for each slice of
    --topology.
    """
    if not options.topology:
        return []
    # Its own parser fills in the options that this command does not have.
    compile_options = compile_request.parser().parse_args([options.target])
    for name in ("topology", *AXES, "rules", *_TARGET_OPTIONS):
        setattr(compile_options, name, getattr(options, name))
    # The other command parses the text itself.
    if options.image_size:
        from tpuport.topology.targets.target import parse_image_size

        compile_options.image_size = parse_image_size(options.image_size)
    return compile_request.requests_from(compile_options)


def _write(result: "CheckResult", options: argparse.Namespace) -> None:
    match options.format:
        case "json":
            report = result.to_json()
        case "html":
            report = result.to_html()
        case _:
            report = result.to_text()
    if options.output is None:
        print_text(report, "the report", fix="give --output FILE")
    else:
        write_file(options.output, report, "the report", "--output")
