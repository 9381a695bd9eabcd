"""The options of `tpuport compile`, checked before anything is imported that takes
time.
"""

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tpuport.cli.arguments import CommandParser, UsageError, number, positive_integer
from tpuport.cli.mesh_options import (
    AXES,
    axis_sizes,
    full_mesh,
    mesh_notes,
    sizes_to_begin_with,
)
from tpuport.errors import PortError
from tpuport.hardware import parse_slice
from tpuport.sharding.rules_format import read_rules
from tpuport.topology.compile_messages import CompileRequest
from tpuport.topology.whole_runs import Recipe

# Options that `targets.resolve` takes.
_TARGET_OPTIONS: Final = (
    "task", "batch", "length", "max_cache_len", "kv_cache", "image_size", "frames", "dtype", "inputs", "component",
    "trust_remote_code",
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = CommandParser(
        prog="tpuport compile",
        description="Compile a model for a TPU, without a TPU: does it fit, what do devices send, what bounds it. "
        "No weights are read or allocated.",
        epilog="Exit code: 0 compiled and fits, 1 does not fit or cannot be traced, 2 could not run.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="a directory or config.json of transformers or diffusers, a name of --list-models, or module:function of "
        "your own code",
    )
    _add_placement(parser.add_argument_group("where it runs"))
    _add_program(parser.add_argument_group("what is compiled"))
    _add_output(parser.add_argument_group("output"))
    return parser


def _add_placement(group: Any) -> None:
    add = group.add_argument
    add(
        "--topology",
        action="append",
        metavar="NAME",
        default=[],
        help="a slice such as v5e:2x4; repeat it for several, one after another",
    )
    add(
        "--tp",
        type=int,
        metavar="N",
        help="devices that divide the weights; all of them by default",
    )
    add(
        "--dp",
        type=int,
        metavar="N",
        help="devices that divide the batch; -1 for what the others leave",
    )
    add("--sp", type=int, metavar="N", help="devices that divide the sequence")
    add(
        "--rules",
        type=Path,
        metavar="FILE",
        help="JSON or TOML: regexes of weights' names to axis names",
    )
    add(
        "--write-rules",
        type=Path,
        metavar="FILE",
        help="write the rules there that the program was compiled with, for --rules: the model's own or, without a "
        "plan, those that were inferred",
    )
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
        help="try mesh splits and rank them; axes that you give are fixed",
    )
    add(
        "--list-models",
        action="store_true",
        help="list the models that are known by name, and stop",
    )
    add(
        "--list-topologies",
        action="store_true",
        help="list the TPUs and their figures, and stop",
    )


def _add_program(group: Any) -> None:
    add = group.add_argument
    # What is left out follows from the target's config.
    add(
        "--task",
        choices=("prefill", "decode", "generate", "forward"),
        help="which program of a model that generates text; generate is prefill and decode, added up",
    )
    add("--batch", type=positive_integer, metavar="N", help="rows of the inputs")
    add(
        "--length",
        type=positive_integer,
        metavar="N",
        help="tokens of the prompt, or of the text",
    )
    add(
        "--max-cache-len",
        type=positive_integer,
        metavar="N",
        help="positions of the key and value cache",
    )
    add("--kv-cache", choices=("int8",), help="keep keys and values in eight bits")
    add(
        "--image-size",
        type=_image_size,
        metavar="HxW",
        help="of images and videos, in pixels: 480x832",
    )
    add("--frames", type=positive_integer, metavar="N", help="of a video")
    add(
        "--steps",
        type=positive_integer,
        metavar="N",
        help="add up a run of N steps of denoising",
    )
    add(
        "--guidance",
        action="store_true",
        help="with --steps: each step needs a second prediction, in the same call if --batch is even, or in another",
    )
    add(
        "--new-tokens",
        type=positive_integer,
        metavar="N",
        help="with --task generate and --length: add up a prompt and N new tokens",
    )
    add(
        "--dtype",
        choices=("bfloat16", "float32", "float16"),
        help="of weights, the config's by default; of your own code, its buffers and floating inputs too, as "
        "model.to(dtype) and inputs.to(dtype) make them; leave it out, and cast there, if an input stays float32",
    )
    add(
        "--quantize",
        metavar="SCHEME",
        help="weights of linear layers in few bits: int8, int4, fp8, w8a8, or with the size of groups, int4:64",
    )
    add("--attention", choices=("flash", "xla"), help="what computes attention")
    add(
        "--component",
        metavar="NAME",
        help="of a pipeline's directory; each of them by default",
    )
    add(
        "--inputs",
        metavar="MODULE:FUNCTION",
        help="a function that returns the inputs to compile for",
    )
    add(
        "--trust-remote-code",
        action="store_true",
        help="run code that the directory contains",
    )
    add(
        "--scan-layers",
        action=argparse.BooleanOptionalAction,
        help="run identical blocks in a loop; by default if that is known to win",
    )
    add(
        "--effort",
        type=_effort,
        metavar="E",
        help="of the compiler, -1 to 1; -1 is several times faster",
    )


def _add_output(group: Any) -> None:
    add = group.add_argument
    add(
        "--format",
        choices=("text", "json", "html"),
        default="text",
        help="how the report is written",
    )
    add("--output", type=Path, metavar="FILE", help="write the report there")
    add(
        "--profile",
        action="store_true",
        help="show where the time of a step goes: by module, by line of code, and the longest instructions",
    )
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the instructions of a step there as a trace for Perfetto; compressed if the name ends in .gz",
    )
    add(
        "--save-hlo", type=Path, metavar="DIR", help="write the compiled programs there"
    )
    add(
        "--traceback",
        action="store_true",
        help="show the whole message of Python or the compiler for a failure",
    )
    add(
        "--no-cache",
        action="store_true",
        help="compile again what is known, and store nothing",
    )


def _quantization(scheme: str | None) -> str | None:
    if scheme is not None:
        from tpuport.quantization.schemes import as_scheme

        try:
            as_scheme(scheme)
        except PortError as error:
            raise UsageError(
                error.what, where="--quantize", fix=error.fix or ""
            ) from error
    return scheme


def requests_from(options: argparse.Namespace) -> list[CompileRequest]:
    """A request for each topology.

    Raises:
        PortError: an option that is not possible, or no target.
    """
    example = "tpuport compile path/to/config.json --topology v5e:2x4; --list-topologies shows them all"
    if options.target is None:
        raise UsageError("no target was given", where="TARGET", fix=example)
    if not options.topology:
        raise UsageError("no topology was given", where="--topology", fix=example)
    # These checks read configs, and import no library.
    from tpuport.topology.targets import early_checks

    _check_recipe(options)
    target_options = {name: getattr(options, name) for name in _TARGET_OPTIONS}
    if options.new_tokens is not None and options.max_cache_len is None:
        target_options["max_cache_len"] = options.length + options.new_tokens
    early_checks.check(options.target, target_options)
    if options.trace is not None:
        check_output(options.trace, "--trace", "the trace")
    rules = rules_source = None
    if options.write_rules is not None:
        _check_rules_output(options)
    if options.rules is not None:
        rules_source = f"--rules {options.rules}"
        rules = read_rules(options.rules, rules_source, AXES)
    sizes = axis_sizes(options)
    fixed_axes = None
    if options.suggest:
        # An axis of -1 takes what is left, so it is free to vary.
        fixed_axes = {axis: size for axis, size in sizes.items() if size != -1}
        if fixed_axes:
            sizes = sizes_to_begin_with(fixed_axes)
    # By full name: the same slice may be written in several ways.
    slices = {
        requested.name: requested for requested in map(parse_slice, options.topology)
    }
    meshes = {
        name: full_mesh(sizes, requested.devices, name)
        for name, requested in slices.items()
    }
    return [
        CompileRequest(
            target=options.target, options=target_options, topology=name, mesh=mesh, rules=rules,
            rules_source=rules_source, allow=options.allow,
            quantize=_quantization(options.quantize), attention=options.attention,
            scan_layers=options.scan_layers, effort=options.effort, fixed_axes=fixed_axes,
            use_cache=not options.no_cache, notes=mesh_notes(mesh, is_given=bool(sizes), suggest=options.suggest),
            wants_rules=options.write_rules is not None, wants_trace=_wants_trace(options),
            is_denoised=options.steps is not None,
        )
        for name, mesh in meshes.items()
    ]  # fmt: skip


def _wants_trace(options: argparse.Namespace) -> bool:
    """Whether something is to be made of when each instruction runs: a file, a page's
    charts, or JSON with it.
    """
    return (
        options.trace is not None
        or options.format == "html"
        or (options.profile and options.format == "json")
    )


def recipe_of(options: argparse.Namespace) -> Recipe:
    """How often the programs are called, as the options say."""
    return Recipe(options.steps, options.guidance, options.length, options.new_tokens)


def _check_recipe(options: argparse.Namespace) -> None:
    """Refuse a run that does not say how long it is.

    Raises:
        UsageError: an option is missing, or there are two kinds of runs.
    """
    example = "--task generate --length 1024 --new-tokens 256"
    if options.guidance and options.steps is None:
        raise UsageError(
            "guidance is of steps of denoising", where="--guidance", fix="add --steps N"
        )
    if options.task == "generate" and None in (options.length, options.new_tokens):
        raise UsageError(
            "a generation has a length", where="--task generate", fix=example
        )
    if options.new_tokens is not None and options.task != "generate":
        raise UsageError(
            "new tokens are of a generation", where="--new-tokens", fix=example
        )
    if options.new_tokens is not None and options.steps is not None:
        raise UsageError(
            "a run denoises or generates",
            where="--steps --new-tokens",
            fix="leave one out",
        )


def _check_rules_output(options: argparse.Namespace) -> None:
    """Refuse to write rules that are given, or that may differ from one topology to the
    next.

    Raises:
        UsageError: the rules cannot be written.
    """
    where = f"--write-rules {options.write_rules}"
    if options.rules is not None:
        raise UsageError(
            "the rules to write are those of --rules already",
            where=where,
            fix="leave one of the two out",
        )
    if len(options.topology) > 1:
        raise UsageError(
            "rules are written for one mesh, and several topologies are given",
            where=where,
            fix="give one --topology",
        )
    check_output(options.write_rules, "--write-rules", "the rules")


def check_report(form: str, output: Path | None) -> None:
    """Refuse a report that could not be written, or not be read, before hours of work.

    Args:
        form: of the report: "text", "json" or "html".
        output: the file for it; None for standard output.

    Raises:
        UsageError: the file cannot be written, or a page would be printed to a
            terminal.
    """
    if output is not None:
        check_output(output)
    elif form == "html" and sys.stdout is not None and sys.stdout.isatty():
        raise UsageError(
            "this is a page for a browser, and standard output is a terminal",
            where="--format html",
            fix="--output report.html",
        )


def check_output(
    file: Path, option: str = "--output", subject: str = "the report"
) -> None:
    """Refuse a file that cannot be written before hours of work.

    Args:
        option: that names the file; subject: what is to be written.

    Raises:
        UsageError: it cannot be written there.
    """
    where = f"{option} {file}"
    directory = file.resolve().parent
    fix = "name a file in a directory that can be written to"
    if not directory.is_dir():
        raise UsageError(
            f"there is no directory {directory}",
            where=where,
            fix=f"mkdir -p {directory}, or {fix}",
        )
    if file.is_dir():
        raise UsageError("this is a directory", where=where, fix=fix)
    try:
        if file.exists() and not os.access(file, os.W_OK):
            raise PermissionError(13, "the file is read-only")
        # Permissions alone do not tell: the file system may be read-only, or full.
        with tempfile.NamedTemporaryFile(prefix=".tpuport-", dir=directory):
            pass
    except OSError as error:
        raise UsageError(
            f"{subject} cannot be written there: {error.strerror}", where=where, fix=fix
        ) from None


def _image_size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size: height and width, 480x832, or 512 for both"
        )
    height, width = match.groups(default=match[1])
    return int(height), int(width)


def _effort(text: str) -> float:
    value = number(text)
    if -1 <= value <= 1:
        return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from -1 to 1")
