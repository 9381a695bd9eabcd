"""Every scheduler of diffusers in a ported pipeline, beside diffusers' own on the CPU.

    python -m benchmarks.pipeline_schedulers                 all of them; minutes
    python -m benchmarks.pipeline_schedulers --only 'Euler*'

Stable Diffusion runs those that predict noise, Stable Diffusion 3 those of flow matching. The pipeline is ported once,
and its scheduler replaced for each call, as users replace it. The records are a table on docs/pipelines.md, which
`python -m benchmarks.pipelines --table` writes.
"""

import argparse
import fnmatch
import json
from pathlib import Path
from typing import Any

from benchmarks import pipelines  # first: it chooses the devices
from benchmarks.pipelines import ROOT, ROUNDING

# isort: split
import torch
from diffusers import schedulers

from benchmarks import tiny_pipelines, tiny_schedulers
from benchmarks.agreement import reason
from benchmarks.coverage import load, store

STORED = ROOT / "docs" / "data" / "pipeline_schedulers.json"
PIPELINES = ("StableDiffusionPipeline", "StableDiffusion3Pipeline")
# Enough for schedulers of three steps' history.
STEPS = 5


class Pair:
    """A pipeline, and the same pipeline ported."""

    def __init__(self, name: str) -> None:
        import tpuport

        self.name = name
        self.theirs, self.ours = tiny_pipelines.build(name), tiny_pipelines.build(name)
        tpuport.port(self.ours.pipe)

    def check(self, scheduler_class: type[Any]) -> dict[str, Any]:
        """The record of a scheduler in this pipeline: a verdict as in `benchmarks.pipelines`, and the error."""
        import tpuport

        try:
            expected = latents(self.theirs, scheduler_class)
        except Exception as error:  # noqa: BLE001 - that diffusers itself does not run it is the finding
            return {"verdict": "torch fails", "reason": reason(error)}
        record: dict[str, Any] = {"pipeline": self.name}
        try:
            result = latents(self.ours, scheduler_class)
        except tpuport.PortError as error:
            if error.where != "scheduler":
                return {**record, "verdict": "refused", "reason": " ".join(str(error).split())[:300]}
            record["reason"] = "steps on the host"
            result = self._on_host(scheduler_class)
        except Exception as error:  # noqa: BLE001 - any other error is the finding
            return {**record, "verdict": "raw error", "reason": reason(error)}
        error = pipelines.relative_error(result, expected)
        return {**record, "verdict": "equal" if error <= ROUNDING else "different", "error": error}

    def _on_host(self, scheduler_class: type[Any]) -> torch.Tensor:
        import tpuport

        self.ours.pipe.scheduler = scheduler_class()
        tpuport.port(self.ours.pipe, scheduler="host")
        try:
            return latents(self.ours, scheduler_class)
        finally:
            self.ours.pipe.scheduler = tiny_pipelines.build(self.name).pipe.scheduler
            tpuport.port(self.ours.pipe, scheduler="device")


def latents(tiny: tiny_pipelines.TinyPipeline, scheduler_class: type[Any]) -> torch.Tensor:
    """What a pipeline makes with a new scheduler of this class, with its default settings."""
    tiny.pipe.scheduler = scheduler_class()
    generator = torch.Generator().manual_seed(3)
    # Stable Diffusion 3 passes its scheduler no generator.
    torch.manual_seed(3)
    output = tiny.pipe(**tiny.inputs, num_inference_steps=STEPS, output_type="latent", generator=generator)
    result = torch.as_tensor(output[0])
    if not result.isfinite().all():
        raise ValueError("the latents are not finite")
    return result


def check_all(names: list[str]) -> list[dict[str, Any]]:
    """A record for each scheduler, in the first pipeline that diffusers itself runs with it."""
    pairs = [Pair(name) for name in PIPELINES]
    records = []
    for name in names:
        scheduler_class = getattr(schedulers, name)
        attempts = [pair.check(scheduler_class) for pair in pairs]
        runs = [attempt for attempt in attempts if attempt["verdict"] != "torch fails"]
        record = {"name": name, **(runs or attempts)[0]}
        records.append(record)
        print(json.dumps(record), flush=True)
    return records


def section(records: list[dict[str, Any]]) -> str:
    """The part of docs/pipelines.md about schedulers."""
    runs = [record for record in records if record["verdict"] != "torch fails"]
    others = [f"`{record['name']}`" for record in records if record["verdict"] == "torch fails"]
    equal = sum(record["verdict"] == "equal" for record in runs)
    rows = [
        f"| `{record['name']}` | `{record['pipeline']}` | {record['verdict']} | "
        f"{record.get('error', float('nan')):.1e} | {record.get('reason', '')} |"
        for record in runs
    ]
    lines = [
        "## Schedulers",
        "",
        f"{equal} of {len(runs)} schedulers, with default settings and {STEPS} steps, give the latents that diffusers' "
        "own give. Neither pipeline runs the others here, which are for other models or need torchsde: "
        + ", ".join(others)
        + ". Written by "
        "`python -m benchmarks.pipeline_schedulers`.",
        "",
        "| scheduler | pipeline | result | error | remark |",
        "| --- | --- | --- | --- | --- |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", default=["*"], help="a pattern of a name; may be repeated")
    parser.add_argument("--stored", type=Path, default=STORED, help="the file with the records")
    options = parser.parse_args()
    patterns = options.only[1:] or options.only
    names = [
        name
        for name in tiny_schedulers.names()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
    torch.set_num_threads(1)
    records = load(options.stored)
    for record in check_all(names):
        records[record["name"]] = record
    store(options.stored, records)


if __name__ == "__main__":
    main()
