"""Port a causal language model and generate text: `python -m recipes.llama --prompt "..."`.

Uses only the public API of tpuport; README.md beside this file explains it step by step.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

import tpuport
from recipes.checks import GGUF_SUFFIX, check_checkpoint
from recipes.command import at_least, create_mesh, quiet_libraries, run_command, simulate_devices, timed
from recipes.model_linting import lint_model_code

DEFAULT_CHECKPOINT = Path(__file__).parent / "checkpoint"
SAMPLING_DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "seed": 0}
DEFAULT_PROMPTS = ["To port a model", "The harbour", "On Wednesday the Blue Heron"]

console = Console(highlight=False, soft_wrap=True)


def locate(checkpoint: Path) -> tuple[Path, dict[str, Any]]:
    """A checkpoint as transformers and tpuport take it: a directory, and the name of a GGUF file in it if it is one."""
    if checkpoint.suffix == GGUF_SUFFIX:
        return checkpoint.parent, {"gguf_file": checkpoint.name}
    return checkpoint, {}


def read_tokenizer(checkpoint: Path, trust_remote_code: bool) -> Any:
    """The checkpoint's tokenizer."""
    from transformers import AutoTokenizer

    directory, file = locate(checkpoint)
    try:
        return AutoTokenizer.from_pretrained(directory, trust_remote_code=trust_remote_code, **file)
    except (OSError, ValueError, ImportError) as error:
        raise tpuport.PortError(
            f"the tokenizer cannot be read: {str(error).strip().splitlines()[0]}",
            where=str(checkpoint),
            fix="put the tokenizer's files (tokenizer.json, tokenizer_config.json) into the checkpoint's directory: "
            "tokenizer.save_pretrained(directory), or copy them from the checkpoint's source",
        ) from error


def read_prompts(tokenizer: Any, prompts: list[str]) -> Any:
    """Token ids and mask of the prompts, padded on the left: decoding continues after the last column."""
    for prompt in prompts:
        if not tokenizer(prompt)["input_ids"]:
            fix = (
                "put the tokenizer's files into the checkpoint's directory"
                if prompt
                else "give at least a word"
            )
            raise tpuport.PortError(f"the tokenizer makes no token of {prompt!r}", where="--prompt", fix=fix)
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer(prompts, return_tensors="pt", padding=True)


def generate_timed(model: Any, inputs: Any, options: dict[str, Any]) -> Any:
    """Generate, print the times of compilation, prefill and decoding, and return the tokens."""
    rows, length = inputs["input_ids"].shape
    # One cache length for both measurements, so that the prompt alone runs in the same program.
    options = options | {"max_cache_len": length + options["max_new_tokens"]}

    def generate(**changes: Any) -> Any:
        return tpuport.generate(model, inputs["input_ids"], inputs["attention_mask"], **(options | changes))

    _, first_seconds = timed(generate)
    tokens, seconds = timed(generate)
    _, prefill_seconds = timed(lambda: generate(max_new_tokens=1))
    console.print(f"compiled in {first_seconds - seconds:.1f} s")
    prompt_tokens = int(inputs["attention_mask"].sum())
    rate = prompt_tokens / prefill_seconds
    console.print(f"prefill: {rate:.0f} tokens/s ({prefill_seconds * 1000:.0f} ms)")
    if tokens.shape[1] - length > 1 and seconds > prefill_seconds:
        # Rows that have ended are padded, and padding does not count.
        decoded = int((tokens[:, length + 1 :] != options["pad_token_id"]).sum())
        rate = decoded / (seconds - prefill_seconds)
        console.print(f"decode: {rate:.0f} tokens/s ({decoded} in {rows} rows, the whole loop on the device)")
    return tokens


def compare(checkpoint: Path, inputs: Any, options: dict[str, Any], tokens: Any) -> bool:
    """Whether transformers' own generate, on the CPU in float32, produces the same tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    directory, file = locate(checkpoint)
    try:
        reference: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **file).eval()
    # Such as quantised weights for which it wants a GPU, or a package that is not installed.
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise tpuport.PortError(
            f"transformers cannot load the checkpoint to compare with: {str(error).strip().splitlines()[0]}",
            where=str(checkpoint),
            fix="leave out --check, or do what it says",
        ) from error
    expected = reference.generate(**inputs, **options)
    if expected.shape == tokens.shape and bool((expected == tokens).all()):
        count = tokens[:, inputs["input_ids"].shape[1] :].numel()
        console.print(f"torch generates the same: all {count} tokens are equal", style="green")
        return True
    console.print(f"torch generates other tokens: {expected.tolist()}", style="red")
    return False


def port_and_generate(
    checkpoint: Path, mesh: Any, prompts: list[str], options: dict[str, Any], **loading: Any
) -> tuple:
    """Load, generate, print the texts; returns the model's inputs, the tokens and the padding id."""
    from transformers import AutoModelForCausalLM

    tokenizer = read_tokenizer(checkpoint, loading.get("trust_remote_code", False))
    inputs = read_prompts(tokenizer, prompts)
    directory, file = locate(checkpoint)
    model, seconds = timed(
        lambda: tpuport.load(AutoModelForCausalLM, directory, mesh=mesh, **file, **loading)
    )
    size = model.num_parameters() / 1e6
    console.print(f"loaded {type(model).__name__}, {size:.1f} M parameters, in {seconds:.1f} s")
    tokens = generate_timed(model, inputs, options | {"pad_token_id": tokenizer.pad_token_id})
    for text in tokenizer.batch_decode(tokens, skip_special_tokens=True):
        console.rule()
        console.print(escape(text))
    console.rule()
    return inputs, tokens, tokenizer.pad_token_id


def parse_arguments() -> argparse.Namespace:
    """The options of the recipe; wrong usage exits with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.llama",
        description="Load a causal language model straight into sharded arrays, generate, compare with torch.",
    )
    add = parser.add_argument
    add("--prompt", action="append", help="text to continue; may be repeated")
    add(
        "--checkpoint",
        type=Path,
        default=DEFAULT_CHECKPOINT,
        help="a local Hugging Face causal LM, or a GGUF file",
    )
    add("--tp", type=int, default=1, help="devices that shard the weights; -1: all that are left")
    add("--dp", type=int, default=1, help="devices that shard the batch; -1: all that are left")
    add("--max-new-tokens", type=at_least(1), default=280, help="tokens to generate per row (default 280)")
    add("--dtype", default="float32", help="float32 (default) or bfloat16")
    add(
        "--quantize",
        help="weights of linear layers in few bits: int8, int4, fp8, w8a8, or with groups, int4:64",
    )
    add("--kv-cache", choices=("int8",), help="keep keys and values in eight bits")
    add("--do-sample", action="store_true", help="sample instead of taking the most likely token")
    add("--temperature", type=float, help="with --do-sample; default 1")
    add("--top-p", type=float, help="with --do-sample; default 1")
    add("--seed", type=int, help="with --do-sample; default 0")
    add(
        "--check",
        action=argparse.BooleanOptionalAction,
        help="compare with torch; default for the tiny Llama",
    )
    add("--allow", action="append", help="a weight or sharding rule whose error to accept; may be repeated")
    add("--lint", action=argparse.BooleanOptionalAction, default=True, help="first lint the model's code")
    add("--trust-remote-code", action="store_true", help="run code from the checkpoint's directory")
    add("--cpu-devices", type=at_least(0), default=0, help="let the CPU simulate this many devices")
    arguments = parser.parse_args()
    sampling = sampling_options(arguments)
    if sampling and not arguments.do_sample:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in sampling)
        parser.error(f"{names}: nothing is sampled without --do-sample")
    if arguments.check and not is_comparable(arguments):
        parser.error(
            "--check: equal tokens are promised for greedy float32 decoding of weights and a cache that are not rounded"
        )
    return arguments


def sampling_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampling options that were given on the command line."""
    options = {name: getattr(arguments, name) for name in SAMPLING_DEFAULTS}
    return {name: value for name, value in options.items() if value is not None}


def is_comparable(arguments: argparse.Namespace) -> bool:
    """Whether torch must generate the same tokens."""
    is_rounded = arguments.quantize is not None or arguments.kv_cache is not None
    return not arguments.do_sample and arguments.dtype == "float32" and not is_rounded


def main() -> None:
    """Run the recipe."""
    arguments = parse_arguments()
    checkpoint = arguments.checkpoint
    check_checkpoint(checkpoint)
    if arguments.lint:
        lint_model_code(checkpoint, console)
    if arguments.cpu_devices:
        simulate_devices(arguments.cpu_devices)
    import tpuport.auto  # noqa: F401

    quiet_libraries()
    mesh = create_mesh({"dp": arguments.dp, "tp": arguments.tp}, console)
    options: dict[str, Any] = {"max_new_tokens": arguments.max_new_tokens, "do_sample": arguments.do_sample}
    if arguments.kv_cache is not None:
        options["kv_cache"] = arguments.kv_cache
    if arguments.do_sample:
        options |= SAMPLING_DEFAULTS | sampling_options(arguments)
    inputs, tokens, pad_token_id = port_and_generate(
        checkpoint,
        mesh,
        arguments.prompt or DEFAULT_PROMPTS,
        options,
        dtype=arguments.dtype,
        allow=arguments.allow or (),
        quantize=arguments.quantize,
        trust_remote_code=arguments.trust_remote_code,
    )
    is_compared = arguments.check
    if is_compared is None:
        is_compared = checkpoint == DEFAULT_CHECKPOINT and is_comparable(arguments)
    if is_compared and not compare(checkpoint, inputs, options | {"pad_token_id": pad_token_id}, tokens):
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
