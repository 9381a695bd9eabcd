"""Trains the tiny Whisper of this recipe with plain torch on the CPU, and saves a checkpoint.

    python -m recipes.whisper.train --out recipes/whisper/checkpoint

Shapes: `B` recordings in a step, `T` tokens in the longest of their transcriptions, `F` frames of the spectrogram.
"""

import argparse
import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)

from recipes.llama.tokenizer import byte_symbols
from recipes.llama.train import optimizers, rate
from recipes.whisper import melodies
from recipes.whisper.melodies import SAMPLING_RATE, TICKS, Phrase

SECONDS = 6  # of a segment; 30 in OpenAI's models
POSITIONS = 50 * SECONDS  # of the encoder, and steps of 0.02 s
FRAMES = 100 * SECONDS  # of a spectrogram
CONTEXT = 96
SEGMENTS = 2500
SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|it|>", "<|translate|>", "<|transcribe|>"]
SPECIAL += ["<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
_SPACE = "\u0120"  # as byte-level BPE writes it


def build_tokenizer() -> WhisperTokenizer:
    """A token for each byte and for each name of a note, those of Whisper, and its timestamps."""
    symbols = byte_symbols()
    merges: list[tuple[str, str]] = []
    for name in [name for names in melodies.NAMES.values() for name in names]:
        merges += [(name[:end], name[end]) for end in range(1, len(name))]
        merges.append((_SPACE, name))
    merges = list(dict.fromkeys(merges))
    words = list(dict.fromkeys([*symbols, *(a + b for a, b in merges)]))
    tokenizer = WhisperTokenizer(
        vocab={word: number for number, word in enumerate(words)},
        merges=merges,
        pad_token=SPECIAL[0],
        additional_special_tokens=SPECIAL[1:],
    )
    # As in Whisper, no special tokens.
    tokenizer.add_tokens([f"<|{step * 0.02:.2f}|>" for step in range(POSITIONS + 1)])
    return tokenizer


def build_processor() -> WhisperProcessor:
    """Spectrograms of 80 bands for segments of `SECONDS`, and the tokenizer."""
    return WhisperProcessor(WhisperFeatureExtractor(chunk_length=SECONDS), build_tokenizer())


def model_config(tokenizer: Any) -> WhisperConfig:
    """0.4 million weights; 4 heads, so that up to 4 devices can share it."""
    end, start = tokenizer.convert_tokens_to_ids(SPECIAL[:2])
    return WhisperConfig(
        vocab_size=math.ceil(len(tokenizer) / 8) * 8,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_source_positions=POSITIONS,
        max_target_positions=CONTEXT,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=start,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )


def generation_config(tokenizer: Any) -> GenerationConfig:
    """What Whisper's own `generate` reads: languages and tasks, and which tokens are none of a text."""
    numbers = dict(zip(SPECIAL, tokenizer.convert_tokens_to_ids(SPECIAL), strict=True))
    end = numbers["<|endoftext|>"]
    return GenerationConfig(
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=numbers["<|startoftranscript|>"],
        max_length=CONTEXT,
        is_multilingual=True,
        language="en",
        task="transcribe",
        lang_to_id={name: numbers[name] for name in ("<|en|>", "<|it|>")},
        task_to_id={name: numbers[f"<|{name}|>"] for name in ("transcribe", "translate")},
        no_timestamps_token_id=numbers["<|notimestamps|>"],
        prev_sot_token_id=numbers["<|startofprev|>"],
        max_initial_timestamp_index=POSITIONS,
        suppress_tokens=[
            number for name, number in numbers.items() if name not in ("<|endoftext|>", "<|nospeech|>")
        ],
        begin_suppress_tokens=[end],
        return_timestamps=False,
    )


def transcription(phrases: list[Phrase], ticks: int, language: str) -> str:
    """Each whole phrase between its times; of a phrase that goes on after the segment, its start alone."""
    text = f"<|startoftranscript|><|{language}|><|transcribe|>"
    for phrase in phrases:
        text += f"<|{phrase.start / TICKS:.2f}|>"
        if phrase.end <= ticks:
            text += f"{phrase.text(language)}<|{phrase.end / TICKS:.2f}|>"
    return text + "<|endoftext|>"


@dataclasses.dataclass(frozen=True)
class Segments:
    """Segments to learn from.

    Attributes:
        features: spectrograms `[N, 80, F]`.
        ends: frames `[N]` after which nothing sounds.
        tokens: of each segment's transcription, by language.
    """

    features: torch.Tensor
    ends: torch.Tensor
    tokens: dict[str, list[torch.Tensor]]


def record(count: int, processor: WhisperProcessor, generator: np.random.Generator) -> Segments:
    """So many segments of melodies, a third of them with an end of a recording."""
    ticks = SECONDS * TICKS
    features, ends = [], []
    tokens: dict[str, list[torch.Tensor]] = {language: [] for language in melodies.NAMES}
    for _ in range(count):
        # A phrase of which less than 0.3 s can be heard is none.
        phrases = [phrase for phrase in melodies.compose(ticks, generator) if phrase.start <= ticks - 3]
        if generator.random() < 0.3:
            phrases = phrases[: int(generator.integers(1, len(phrases) + 1))]
        sound = melodies.play(phrases, ticks, generator)
        spectrum = processor.feature_extractor(sound, sampling_rate=SAMPLING_RATE, return_tensors="pt")
        features.append(spectrum["input_features"])
        ends.append(min(phrases[-1].end, ticks) * FRAMES // ticks)
        for language, rows in tokens.items():
            text = transcription(phrases, ticks, language)
            rows.append(torch.tensor(processor.tokenizer(text, add_special_tokens=False)["input_ids"]))
    return Segments(torch.cat(features), torch.tensor(ends), tokens)


def lesson(segments: Segments, batch: int, pad: int, cut: bool) -> dict[str, torch.Tensor]:
    """Inputs of the model for segments by chance, each in a language by chance.

    With `cut`, recordings end somewhere after their last phrase, and zeros follow, as `generate` pads the last segment.
    """
    rows = torch.randint(len(segments.features), (batch,))
    features = segments.features[rows]
    if cut:
        ends = segments.ends[rows]
        lengths = ends + (torch.rand(batch) * (FRAMES - ends + 1)).long()
        features = features * (torch.arange(FRAMES) < lengths[:, None])[:, None]
    languages = list(segments.tokens)
    chosen = [segments.tokens[languages[int(torch.randint(2, ()))]][row] for row in rows.tolist()]
    tokens_BT = pad_sequence(chosen, batch_first=True, padding_value=-100)
    labels_BT = tokens_BT[:, 1:].clone()
    labels_BT[:, :2] = -100  # language and task are asked for
    inputs_BT = tokens_BT[:, :-1]
    return {
        "input_features": features,
        "decoder_input_ids": inputs_BT.masked_fill(inputs_BT == -100, pad),
        "labels": labels_BT,
    }


def learn(model: Any, segments: Segments, steps: int, batch: int, cut: bool) -> None:
    """Train a model for `steps` steps of `batch` segments; with `cut`, every second step has ends of recordings."""
    model.train()
    tools = optimizers(model)
    schedules = [torch.optim.lr_scheduler.LambdaLR(tool, lambda step: rate(step, steps)) for tool in tools]
    started = time.perf_counter()
    for step in range(steps):
        inputs = lesson(segments, batch, model.config.pad_token_id, cut and step % 2 == 0)
        loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for tool, schedule in zip(tools, schedules, strict=True):
            tool.step()
            tool.zero_grad()
            schedule.step()
        if step % 50 == 49 or step == steps - 1:
            seconds = time.perf_counter() - started
            print(f"step {step + 1}/{steps}  loss {loss.item():.4f}  {seconds:.0f} s", flush=True)
    model.eval()


def save(model: WhisperForConditionalGeneration, processor: WhisperProcessor, directory: Path) -> None:
    """Write float16 weights, configurations and the processor for `transformers` to load."""
    options = generation_config(processor.tokenizer)
    model.generation_config = options
    model.half().save_pretrained(directory)
    processor.save_pretrained(directory)


def main() -> None:
    """Train and save, by the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m recipes.whisper.train", description=__doc__)
    parser.add_argument("--steps", type=int, default=1100)
    parser.add_argument("--end-steps", type=int, default=250, help="after those, with ends of recordings")
    parser.add_argument("--batch", type=int, default=8, help="segments in a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "checkpoint")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    processor = build_processor()
    segments = record(SEGMENTS, processor, np.random.default_rng(arguments.seed))
    model = WhisperForConditionalGeneration(model_config(processor.tokenizer))
    learn(model, segments, arguments.steps, arguments.batch, cut=False)
    learn(model, segments, arguments.end_steps, arguments.batch, cut=True)
    save(model, processor, arguments.out)
    print(f"saved in {arguments.out}")


if __name__ == "__main__":
    main()
