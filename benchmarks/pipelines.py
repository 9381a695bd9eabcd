"""Pipelines of diffusers through tpuport, beside diffusers' own on the CPU.

    python -m benchmarks.pipelines                   all pipelines of `benchmarks.tiny_pipelines`; half an hour
    python -m benchmarks.pipelines --only 'Flux*'    some of them
    python -m benchmarks.pipelines --table           write docs/pipelines.md from what is stored

Each is built twice with the same random weights; one is ported. Both are called with the same seed, decoded and with
`output_type="latent"`, with and without a callback that changes the latents. A pipeline runs in a process of its own.
What is stored in docs/data/pipelines.json is not run again without --again.
"""

import argparse
import concurrent.futures
import fnmatch
import inspect
import json
import multiprocessing
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before anything imports jax, here and in the processes that are started from here.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)

import numpy as np
import torch
from diffusers.utils import BaseOutput

from benchmarks import pipelines_unbuilt, tiny_pipelines
from benchmarks.agreement import reason
from benchmarks.coverage import load, made_with, store, versions
from benchmarks.coverage_table import age

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "docs" / "data" / "pipelines.json"
PAGE = ROOT / "docs" / "pipelines.md"
STEPS = 2
# Pipelines that round clips to 8 bits, so that rounding in float32 may be a whole level of some pixels.
_EIGHT_BITS = "Cosmos"
LEVEL = 1.01 / 255
# Pipelines with an autoencoder that know no `output_type="latent"`.
_WITHOUT_LATENTS = re.compile(
    "DiTPipeline|KandinskyV22Controlnet.*|Kandinsky(Img2Img|Inpaint)?(Combined)?Pipeline|Kandinsky6SR.*|Marigold.*|QwenImageLayered.*|"
    "LTX2VideoDiffusionDecode.*|RFD4.*"
)
# Pipelines that draw points of a scene without a generator, which no device repeats: their latents are compared.
_DRAWN = re.compile("ShapE.*")
# A pipeline that gives a callback other latents than those that it reads of it, and one that gives it none.
_WITHOUT_CALLBACK = ("LTXI2VLongMultiPromptPipeline", "RFD4ProteinaPipeline")
# The largest difference, as a share of the largest number, that rounding in float32 explains.
ROUNDING = 1e-3


def checked(name: str) -> dict[str, Any]:
    """The record of a pipeline: its name, a verdict, the largest relative error, and programs of a second call.

    The verdict is "equal", "different", "refused" (a PortError), "raw error" (any other) or "torch fails".
    """
    from tpuport.errors import PortError

    torch.set_num_threads(1)
    try:
        theirs = tiny_pipelines.build(name)
        expected = dict(results(theirs))
    except Exception as error:  # noqa: BLE001 - that diffusers itself does not run it is the finding
        return {"name": name, "verdict": "torch fails", "reason": reason(error)}
    try:
        return {"name": name, **compare(tiny_pipelines.build(name), expected)}
    except PortError as error:
        text = re.sub(r"\S*site-packages/", "", " ".join(str(error).split()))
        return {"name": name, "verdict": "refused", "reason": text[:300]}
    except Exception as error:  # noqa: BLE001 - any other error is the finding
        return {"name": name, "verdict": "raw error", "reason": reason(error)}


def results(tiny: tiny_pipelines.TinyPipeline) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """What a pipeline makes in each kind of call that it knows: pictures or clips, then sound and other tensors."""
    name = type(tiny.pipe).__name__
    parameters = inspect.signature(tiny.pipe.__call__).parameters
    components = tiny.pipe.components
    has_types = "output_type" in parameters
    # Pipelines of pixels and of sound give arrays and have no type for tensors.
    decoded = "pt" if "vae" in components and "height" in parameters else "np"
    if _DRAWN.fullmatch(name):
        yield "latent", _call(tiny, {"output_type": "latent"})
        return
    yield "decoded", _call(tiny, {"output_type": decoded} if has_types else {})
    # Pipelines of pixels have no latents, and others none that they give.
    has_latents = {"vae", "movq"} & components.keys() and not _WITHOUT_LATENTS.fullmatch(name)
    if has_types and has_latents:
        yield "latent", _call(tiny, {"output_type": "latent"})
    if "callback_on_step_end" in parameters and name not in _WITHOUT_CALLBACK:
        result_type = {"output_type": "latent" if has_latents else decoded} if has_types else {}
        yield "callback", _call(tiny, {**result_type, "callback_on_step_end": _halve})


def _halve(pipe: Any, step: int, timestep: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A callback that changes the latents of the first step."""
    return {"latents": tensors["latents"] * 0.5} if step == 0 else {}


def _call(tiny: tiny_pipelines.TinyPipeline, options: dict[str, Any]) -> list[torch.Tensor]:
    # Some pipelines draw an encoder's latents without the generator that they are given.
    torch.manual_seed(4)
    known = {"num_inference_steps": STEPS, "generator": torch.Generator().manual_seed(3)}
    parameters = inspect.signature(tiny.pipe.__call__).parameters
    settings = {name: value for name, value in known.items() if name in parameters}
    output = tiny.pipe(**tiny.inputs, **options, **settings)
    values = output.to_tuple() if isinstance(output, BaseOutput) else output
    parts = [part for value in values for part in (value if isinstance(value, list) else [value])]
    # A pipeline may also return words, flags or nothing.
    tensors = [torch.as_tensor(part) for part in parts if isinstance(part, np.ndarray | torch.Tensor)]
    if not tensors:
        raise TypeError(
            f"no array in what {type(tiny.pipe).__name__} returns: {[type(part) for part in parts]}"
        )
    return tensors


def compare(tiny: tiny_pipelines.TinyPipeline, expected: dict[str, list[torch.Tensor]]) -> dict[str, Any]:
    """Port the pipeline and compare each of its calls with those of diffusers."""
    record: dict[str, Any] = {}
    if _port(tiny.pipe) == "host":
        record["reason"] = "steps on the host"
    errors = {kind: largest_error(result, expected[kind]) for kind, result in results(tiny)}
    count = compilations(tiny.pipe)
    again = {kind: largest_error(result, expected[kind]) for kind, result in results(tiny)}
    is_rounded = type(tiny.pipe).__name__.startswith(_EIGHT_BITS)
    limits = {"decoded": LEVEL if is_rounded else ROUNDING}
    different = [kind for kind in errors if max(errors[kind], again[kind]) > limits.get(kind, ROUNDING)]
    record |= {
        "verdict": "different" if different else "equal",
        "error": max((*errors.values(), *again.values())),
        "calls": list(errors),
        "recompilations": compilations(tiny.pipe) - count,
    }
    return record | ({"reason": ", ".join(different)} if different else {})


def _port(pipe: Any) -> str:
    """Port a pipeline, and say where its scheduler steps: "host" if that cannot be done on the device."""
    import tpuport

    try:
        tpuport.port(pipe)
    except tpuport.PortError as error:
        if error.where != "scheduler":
            raise
        # What the error says.
        tpuport.port(pipe, scheduler="host")
        return "host"
    return "device"


def largest_error(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The largest of their relative errors; infinite for another number of tensors."""
    if len(ours) != len(theirs):
        return float("inf")
    return max(map(relative_error, ours, theirs))


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference as a share of the largest number; infinite for another shape or what is not finite."""
    if torch.equal(ours, theirs):
        # Also flags, and what is zero throughout.
        return 0.0
    if ours.shape != theirs.shape or not ours.isfinite().all():
        return float("inf")
    return float((ours.double() - theirs).abs().max() / theirs.double().abs().max())


def compilations(pipe: Any) -> int:
    """How many programs the pipeline's models have."""
    modules = [module for module in pipe.components.values() if isinstance(module, torch.nn.Module)]
    forwards: list[Any] = [vars(part).get("forward") for module in modules for part in module.modules()]
    return sum(forward.program.compilations for forward in {*forwards} if hasattr(forward, "program"))


def run(name: str) -> dict[str, Any]:
    """The record of a pipeline, made in a process of its own."""
    started = time.monotonic()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "diffusers", "tpuport.diffusion", "benchmarks.pipelines"])
    with concurrent.futures.ProcessPoolExecutor(1, context) as executor:
        try:
            record = executor.submit(checked, name).result()
        except concurrent.futures.process.BrokenProcessPool:
            record = {"name": name, "verdict": "crashed", "reason": "the process ended"}
    seconds = round(time.monotonic() - started, 1)
    return {**record, "seconds": seconds, "made_with": made_with("diffusers", "transformers")}


def page(records: list[dict[str, Any]], libraries: dict[str, str]) -> str:
    """docs/pipelines.md."""
    failing = sum(record["verdict"] == "torch fails" for record in records)
    equal = sum(record["verdict"] == "equal" for record in records)
    rows = [
        f"| `{record['name']}` | {record['verdict']} | {record.get('error', float('nan')):.1e} | "
        f"{', '.join(record.get('calls', []))} | {record.get('recompilations', '')} | {age(record, libraries)} | "
        f"{record.get('reason', '')} |"
        for record in records
    ]
    summary = (
        f"{equal} of {len(records) - failing} pipelines of diffusers {libraries['diffusers']}, with tiny components of "
        f"random weights and transformers {libraries['transformers']}, give what diffusers gives on the CPU after "
        "`tpuport.port(pipe)`: decoded, as latents, and with a callback that changes them, where a pipeline has "
        "these. The error is the largest difference as a share "
        "of the largest number, in float32; Cosmos rounds its clips to 8 bits, where a level is 4e-03. The next column "
        "is what a second call compiled, and the one after it the day of the last change of tpuport that the row was "
        "made with, and versions of the libraries that are not the above. `:stack` is with two ControlNets or "
        "adapters, `:two` with two transformers, `:refiner` the second model of "
        "Stable Diffusion XL. A pipeline that steps on the host is ported with "
        '`scheduler="host"`. "Torch fails" is an error of diffusers itself. '
        "Written by `python -m benchmarks.pipelines`."
    )
    lines = [
        "# Pipelines beside diffusers",
        "",
        summary,
        "",
        "| pipeline | result | error | calls | compiled again | tpuport of | remark |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def write_page(records: dict[str, dict[str, Any]]) -> None:
    """Write docs/pipelines.md from what is stored, of pipelines and of schedulers."""
    from benchmarks import pipeline_schedulers

    text = page([records[name] for name in sorted(records)], versions())
    text += "\n" + pipelines_unbuilt.section(records)
    schedulers = load(pipeline_schedulers.STORED)
    if schedulers:
        text += "\n" + pipeline_schedulers.section([schedulers[name] for name in sorted(schedulers)])
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="a pattern of a name; may be repeated")
    parser.add_argument("--again", action="store_true", help="run what is stored, too")
    parser.add_argument("--stored", type=Path, default=STORED, help="the file with the records")
    parser.add_argument("--table", action="store_true", help="only write the page")
    options = parser.parse_args()
    records = load(options.stored)
    if not options.table:
        for name in tiny_pipelines.names():
            is_wanted = not options.only or any(fnmatch.fnmatchcase(name, only) for only in options.only)
            if is_wanted and (options.again or name not in records):
                records[name] = run(name)
                store(options.stored, records)
                print(json.dumps(records[name]), flush=True)
    if options.stored == STORED:
        write_page(records)


if __name__ == "__main__":
    main()
