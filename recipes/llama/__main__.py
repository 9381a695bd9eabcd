"""Port a causal language model and let it speak: `python -m recipes.llama --prompt "..."`.

Uses the public API of tpuport alone; README.md beside this file goes through it step by step.
"""

import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import tpuport
from recipes.llama.linting import look

DEFAULT_CHECKPOINT = Path(__file__).parent / "checkpoint"
DEFAULT_PROMPTS = ["To port a model", "The harbour", "On Wednesday the Blue Heron"]

console = Console(highlight=False, soft_wrap=True)


def pretend_devices(count: int) -> None:
    """Let the CPU stand in for `count` devices; must come before jax is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}".strip()


def require(checkpoint: Path) -> None:
    """Raise unless the checkpoint is a directory here."""
    if not checkpoint.is_dir():
        fix = "give a local directory; `hf download NAME --local-dir DIR` makes one"
        raise tpuport.PortError("there is no such directory", where=str(checkpoint), fix=fix)


def read_tokenizer(checkpoint: Path, trust_remote_code: bool) -> Any:
    """The checkpoint's tokenizer."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        raise tpuport.PortError(
            f"the tokenizer cannot be read: {str(error).strip().splitlines()[0]}",
            where=str(checkpoint),
            fix="put the tokenizer's files (tokenizer.json, tokenizer_config.json) into the checkpoint's directory: "
            "tokenizer.save_pretrained(directory), or copy them from where the checkpoint came from",
        ) from error


def read_prompts(tokenizer: Any, prompts: list[str]) -> Any:
    """Token ids and mask of the prompts, padded on the left: decoding goes on from the last column."""
    empty = [prompt for prompt in prompts if not tokenizer(prompt)["input_ids"]]
    if empty:
        raise tpuport.PortError(
            f"the tokenizer makes no token of {empty[0]!r}",
            where="--prompt",
            fix="give at least a word"
            if not empty[0]
            else "put the tokenizer's files into the checkpoint's directory",
        )
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer(prompts, return_tensors="pt", padding=True)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result and the seconds it took; generate's tokens are on the host, so the device has finished."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def speak(model: Any, inputs: Any, options: dict[str, Any]) -> Any:
    """Generate, and print what compiling, the prompt and each token cost; returns the tokens."""
    rows, length = inputs["input_ids"].shape
    # One cache length for both measurements: the prompt alone then runs in the program that is there already.
    options = options | {"max_cache_len": length + options["max_new_tokens"]}

    def generate(**changes: Any) -> Any:
        return tpuport.generate(model, inputs["input_ids"], inputs["attention_mask"], **(options | changes))

    _, first = timed(generate)
    tokens, whole = timed(generate)
    _, prompt = timed(lambda: generate(max_new_tokens=1))
    made = tokens.shape[1] - length
    console.print(f"compiled in {first - whole:.1f} s")
    console.print(
        f"prefill: {int(inputs['attention_mask'].sum()) / prompt:.0f} tokens/s ({prompt * 1000:.0f} ms)"
    )
    if made > 1 and whole > prompt:
        # Rows that have ended are filled up with padding, which is nothing said.
        said = int((tokens[:, length + 1 :] != options["pad_token_id"]).sum())
        rate = said / (whole - prompt)
        console.print(f"decode: {rate:.0f} tokens/s ({said} in {rows} rows, the whole loop on the device)")
    return tokens


def compare(checkpoint: Path, inputs: Any, options: dict[str, Any], tokens: Any) -> bool:
    """Whether transformers' own generate, on the CPU in float32, gives the same tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    reference: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    expected = reference.generate(**inputs, **options)
    if expected.shape == tokens.shape and bool((expected == tokens).all()):
        count = tokens[:, inputs["input_ids"].shape[1] :].numel()
        console.print(f"torch says the same: all {count} tokens are equal", style="green")
        return True
    console.print(f"torch says something else: {expected.tolist()}", style="red")
    return False


def port_and_speak(
    checkpoint: Path, mesh: Any, prompts: list[str], options: dict[str, Any], **loading: Any
) -> tuple:
    """Load, generate, print the texts; returns the model's inputs, the tokens, the padding id."""
    from transformers import AutoModelForCausalLM

    tokenizer = read_tokenizer(checkpoint, loading.get("trust_remote_code", False))
    inputs = read_prompts(tokenizer, prompts)
    model, seconds = timed(lambda: tpuport.load(AutoModelForCausalLM, checkpoint, mesh=mesh, **loading))
    size = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    console.print(f"loaded {type(model).__name__}, {size:.1f} M parameters, in {seconds:.1f} s")
    tokens = speak(model, inputs, options | {"pad_token_id": tokenizer.pad_token_id})
    for text in tokenizer.batch_decode(tokens, skip_special_tokens=True):
        console.rule()
        console.print(escape(text))
    console.rule()
    return inputs, tokens, tokenizer.pad_token_id


def sampling_options(do_sample: bool, **given: float | None) -> dict[str, Any]:
    """Those that were given over the defaults; wrong usage where nothing would be drawn."""
    wanted = {name: value for name, value in given.items() if value is not None}
    if wanted and not do_sample:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in wanted)
        raise typer.BadParameter("nothing is drawn without --do-sample", param_hint=names)
    return {"temperature": 1.0, "top_p": 1.0, "seed": 0} | wanted if do_sample else {}


def run(
    prompt: Annotated[list[str] | None, typer.Option(help="What to continue; may be repeated.")] = None,
    checkpoint: Annotated[Path, typer.Option(help="A local Hugging Face causal LM.")] = DEFAULT_CHECKPOINT,
    tp: Annotated[int, typer.Option(help="Devices that share the weights; -1: all left.")] = 1,
    dp: Annotated[int, typer.Option(help="Devices that share the batch; -1: all left.")] = 1,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate a row.")] = 280,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    do_sample: Annotated[bool, typer.Option("--do-sample", help="Draw instead of taking the best.")] = False,
    temperature: Annotated[float | None, typer.Option(help="With --do-sample; 1 by default.")] = None,
    top_p: Annotated[float | None, typer.Option(help="With --do-sample; 1 by default.")] = None,
    seed: Annotated[int | None, typer.Option(help="With --do-sample; 0 by default.")] = None,
    check: Annotated[
        bool | None, typer.Option(help="Compare with torch; on by default for the tiny Llama.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="A weight or a sharding rule that the checks let pass; may be repeated."),
    ] = None,
    lint: Annotated[
        bool, typer.Option(help="Look first for what in the model's code cannot be traced.")
    ] = True,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code")] = False,
    cpu_devices: Annotated[int, typer.Option(min=0, help="Let the CPU stand in for so many devices.")] = 0,
) -> None:
    """Load a causal language model straight into sharded arrays, generate on the device, compare with torch."""
    if check and (do_sample or dtype != "float32"):
        raise typer.BadParameter(
            "equal tokens are promised for greedy float32 decoding", param_hint="--check"
        )
    drawing = sampling_options(do_sample, temperature=temperature, top_p=top_p, seed=seed)
    require(checkpoint)
    if lint:
        look(checkpoint, console)
    if cpu_devices:
        pretend_devices(cpu_devices)
    import jax
    from transformers.utils.logging import disable_progress_bar

    import tpuport.auto

    logging.getLogger("transformers").setLevel(logging.ERROR)
    disable_progress_bar()
    devices = jax.devices()[: dp * tp] if min(dp, tp) > 0 else None
    mesh = tpuport.create_mesh(dp=dp, tp=tp, devices=devices)
    console.print(f"mesh: dp={mesh.shape['dp']} tp={mesh.shape['tp']}, {mesh.devices.flat[0].platform}")
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": do_sample}
    inputs, tokens, pad = port_and_speak(
        checkpoint,
        mesh,
        prompt or DEFAULT_PROMPTS,
        options | drawing,
        dtype=dtype,
        allow=allow or (),
        trust_remote_code=trust_remote_code,
    )
    by_default = checkpoint == DEFAULT_CHECKPOINT and not do_sample and dtype == "float32"
    if (by_default if check is None else check) and not compare(
        checkpoint, inputs, options | {"pad_token_id": pad}, tokens
    ):
        sys.exit(1)


def main() -> None:
    """Run the recipe; what cannot work is said in a sentence and exits with 1."""
    try:
        typer.run(run)
    except tpuport.PortError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(str(error), style="red", markup=False)
        sys.exit(1)


if __name__ == "__main__":
    main()
