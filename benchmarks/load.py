"""Peak resident memory of `tpuport.load`, against `from_pretrained` and a move, for a Llama made on the spot.

    python benchmarks/load.py                  3 GB of weights, in a temporary directory
    python benchmarks/load.py --gigabytes 8

Each way runs in a process of its own on one CPU device, whose memory is the host's; its peak is the kernel's
own high-water mark. What the imports take is shown apart and subtracted.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

FILE_BYTES = 500_000_000


def write_checkpoint(directory: Path, gigabytes: float) -> int:
    """Write a bfloat16 Llama of about that size, file by file, and return the bytes of its weights."""
    import torch
    from accelerate import init_empty_weights
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32_000, hidden_size=2048, intermediate_size=5632, num_attention_heads=16,
        num_key_value_heads=4, num_hidden_layers=1, dtype="bfloat16", architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    with init_empty_weights():
        one = {name: tensor.numel() * 2 for name, tensor in LlamaForCausalLM(config).state_dict().items()}
        layer = sum(size for name, size in one.items() if ".layers." in name)
        outside = sum(one.values()) - layer
        config.num_hidden_layers = max(1, round((gigabytes * 1e9 - outside) / layer))
        shapes = {name: tensor.shape for name, tensor in LlamaForCausalLM(config).state_dict().items()}
    config.save_pretrained(directory)
    weight_map = {}
    for number, names in enumerate(_files(shapes)):
        file = f"model-{number:05}.safetensors"
        tensors = {name: torch.randn(shapes[name], dtype=torch.bfloat16) * 0.02 for name in names}
        save_file(tensors, directory / file, {"format": "pt"})
        weight_map.update(dict.fromkeys(names, file))
    total = sum(shape.numel() * 2 for shape in shapes.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def _files(shapes: dict[str, Any]) -> Iterator[list[str]]:
    """The names of the tensors in each file."""
    names: list[str] = []
    size = 0
    for name, shape in shapes.items():
        names.append(name)
        size += shape.numel() * 2
        if size >= FILE_BYTES:
            yield names
            names, size = [], 0
    if names:
        yield names


def only_imports(directory: Path) -> Any:
    """What every way has in memory before it starts: the libraries, and jax with its device."""
    import jax
    import transformers

    import tpuport
    from tpuport import compat

    compat.environment()
    jax.devices()
    return transformers.AutoModelForCausalLM, transformers.LlamaForCausalLM, tpuport.load, directory


def tpuport_load(directory: Path) -> Any:
    """The way of this package."""
    from transformers import AutoModelForCausalLM

    import tpuport

    return tpuport.load(AutoModelForCausalLM, directory)


def torch_then_move(directory: Path) -> Any:
    """`from_pretrained`, then torchax's own `.to("jax")`, as its examples do."""
    from transformers import AutoModelForCausalLM

    from tpuport import compat

    model: Any = AutoModelForCausalLM.from_pretrained(directory)
    with compat.environment():
        return model.to("jax")


def torch_then_port(directory: Path) -> Any:
    """`from_pretrained`, then `tpuport.port`."""
    from transformers import AutoModelForCausalLM

    import tpuport

    return tpuport.port(AutoModelForCausalLM.from_pretrained(directory))


WAYS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "imports": ("imports alone", only_imports),
    "load": ("tpuport.load", tpuport_load),
    "move": ('from_pretrained, .to("jax")', torch_then_move),
    "port": ("from_pretrained, tpuport.port", torch_then_port),
}


def peak_bytes() -> int:
    """The most memory that this process has had resident."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent had when it started this process
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run_here(way: str, directory: Path) -> None:
    """Run one way and print its peak and its seconds as JSON."""
    import jax

    only_imports(directory)
    start = time.perf_counter()
    model = WAYS[way][1](directory)
    if way != "imports":
        jax.block_until_ready([parameter.jax() for parameter in model.parameters()])
    print(json.dumps({"peak": peak_bytes(), "seconds": time.perf_counter() - start}))


def run_apart(*arguments: str) -> Any:
    """What this script, run in a process of its own, prints as its last line."""
    command = [sys.executable, __file__, *arguments]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(result.stdout.splitlines()[-1])


def show(weights: int, results: dict[str, dict[str, float]]) -> None:
    """Print the table, memory in GB and as a multiple of the weights."""
    from rich.console import Console
    from rich.table import Table

    title = f"Peak resident memory, Llama of {weights / 1e9:.2f} GB in bfloat16, one CPU device"
    table = Table("way", "peak GB", "above imports GB", "x weights", "seconds", title=title)
    base = results["imports"]["peak"]
    for way, result in results.items():
        above = result["peak"] - base
        cells = [f"{result['peak'] / 1e9:.2f}", f"{above / 1e9:.2f}", f"{above / weights:.3f}"]
        apart = [cells[0], "", "", ""] if way == "imports" else [*cells, f"{result['seconds']:.1f}"]
        table.add_row(WAYS[way][0], *apart)
    Console().print(table)


def main() -> None:
    """Make the checkpoint, measure each way, show the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=3.0, help="size of the weights (default 3)")
    parser.add_argument("--way", choices=[*WAYS, "write"], help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way == "write":
        print(write_checkpoint(options.directory, options.gigabytes))
    elif options.way:
        run_here(options.way, options.directory)
    else:
        with tempfile.TemporaryDirectory() as directory:
            place = ["--directory", directory, "--gigabytes", str(options.gigabytes)]
            weights = run_apart("--way", "write", *place)
            results = {way: run_apart("--way", way, *place) for way in WAYS}
        show(weights, results)


if __name__ == "__main__":
    main()
