"""Port a Whisper and write down recordings, with times: `python -m recipes.whisper --audio speech.wav`.

Uses only the public API of tpuport; README.md beside this file says what is special about this model.
"""

import argparse
from pathlib import Path
from typing import Any

import tpuport
from recipes.command import run_command
from recipes.generation_command import GenerationRecipe, run_recipe
from recipes.whisper import melodies
from recipes.whisper.recordings import read_recording, write_recording

EXAMPLE_SECONDS = 36


def add_options(parser: argparse.ArgumentParser) -> None:
    """The recipe's own options."""
    parser.add_argument("--language", help="of the recordings; default: the checkpoint's, or what it detects")
    parser.add_argument("--task", help="transcribe or translate; default: the checkpoint's")
    parser.add_argument("--prompt", help="text that comes before, such as names and their spelling")


def write_examples(output: Path) -> list[Path]:
    """A melody as a WAV file."""
    file = output / "melody.wav"
    write_recording(file, melodies.recording(EXAMPLE_SECONDS, seed=7), melodies.SAMPLING_RATE)
    return [file]


def check_inputs(arguments: argparse.Namespace) -> None:
    """Raise PortError for a recording that cannot be read, and a task that is none."""
    for file in arguments.audio:
        read_recording(file, melodies.SAMPLING_RATE)
    if arguments.task not in (None, "transcribe", "translate"):
        raise tpuport.PortError(f"task {arguments.task!r}", where="--task", fix="transcribe or translate")


def read_processor(checkpoint: Path) -> Any:
    """The checkpoint's feature extractor and tokenizer."""
    from transformers import WhisperProcessor

    try:
        return WhisperProcessor.from_pretrained(checkpoint, local_files_only=True)
    except (OSError, ValueError, TypeError) as error:
        raise tpuport.PortError(
            f"the processor cannot be read: {str(error).strip().splitlines()[0]}",
            where=str(checkpoint),
            fix="put the files of the feature extractor and the tokenizer into the checkpoint's directory: "
            "processor.save_pretrained(directory), or copy them from the checkpoint's source",
        ) from error


def prepare(processor: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of Whisper's `generate`: spectrograms, and how to write them down."""
    extractor = processor.feature_extractor
    sounds = [read_recording(file, extractor.sampling_rate) for file in arguments.audio]
    is_long = max(len(sound) for sound in sounds) > extractor.n_samples
    # A segment has one length; longer recordings are as long as they are, and `generate` cuts them up.
    lengths = {"truncation": False, "padding": "longest"} if is_long else {}
    features = extractor(
        sounds,
        sampling_rate=extractor.sampling_rate,
        return_tensors="pt",
        return_attention_mask=True,
        **lengths,
    )
    call = {**features, "return_timestamps": True, "return_segments": True}
    call |= {name: getattr(arguments, name) for name in ("language", "task") if getattr(arguments, name)}
    if arguments.language:
        check_language(processor, arguments.language)
    if arguments.prompt:
        call["prompt_ids"] = processor.get_prompt_ids(arguments.prompt, return_tensors="pt")
    return call


def check_language(processor: Any, language: str) -> None:
    """Raise PortError for a language without a token of its own in the checkpoint."""
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    vocabulary = processor.tokenizer.get_vocab()
    name = language.lower().removeprefix("<|").removesuffix("|>")
    if f"<|{TO_LANGUAGE_CODE.get(name, name)}|>" in vocabulary:
        return
    codes = sorted({code for code in TO_LANGUAGE_CODE.values() if f"<|{code}|>" in vocabulary})
    raise tpuport.PortError(
        f"the checkpoint has no language {language!r}",
        where="--language",
        fix=f"one of its codes: {', '.join(codes)}; or leave the option out, and the language is detected",
    )


def describe(processor: Any, call: dict[str, Any], result: Any) -> list[str]:
    """A line for each segment, with its times in seconds."""
    lines = []
    seconds = call["attention_mask"].sum(-1) * processor.feature_extractor.hop_length
    for row, segments in enumerate(result["segments"]):
        lines.append(
            f"recording {row + 1}, {seconds[row] / processor.feature_extractor.sampling_rate:.1f} s:"
        )
        for segment in segments:
            text = processor.decode(segment["tokens"], skip_special_tokens=True)
            lines.append(f"  {float(segment['start']):6.2f} to {float(segment['end']):6.2f} {text}")
    return lines


def heads(config: dict[str, Any]) -> int:
    """The heads of the decoder, and of the encoder."""
    return int(config["decoder_attention_heads"])


RECIPE = GenerationRecipe(
    name="whisper",
    model_class="AutoModelForSpeechSeq2Seq",
    model_types=("whisper",),
    option="audio",
    add_options=add_options,
    write_examples=write_examples,
    check_inputs=check_inputs,
    read_processor=read_processor,
    prepare=prepare,
    describe=describe,
    heads=heads,
)


if __name__ == "__main__":
    run_command(lambda: run_recipe(RECIPE))
