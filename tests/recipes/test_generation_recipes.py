"""The recipes of sound and images: tiny models that hear and see, files of users, and what is refused at once."""

import importlib
import os
import re
import shutil
import struct
import subprocess
import sys
import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from recipes import generation_command
from recipes.generation_command import GenerationRecipe
from recipes.vision_language import shapes
from recipes.vision_language.processors import read_processor
from recipes.whisper import melodies
from recipes.whisper.recordings import read_recording, write_recording
from tpuport import PortError

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("vision_language", "whisper")


def _recipe(name: str) -> GenerationRecipe:
    return importlib.import_module(f"recipes.{name}.__main__").RECIPE


def _check(name: str, *words: str) -> Any:
    """The checked options of a recipe's command."""
    recipe = _recipe(name)
    arguments = generation_command.parse_arguments(recipe, words)
    sizes = {"dp": arguments.dp, "tp": arguments.tp}
    generation_command.check_request(recipe, arguments, sizes)
    return arguments


def _lines(name: str, *words: str) -> list[str]:
    """What the recipe prints about what torch generates."""
    recipe, arguments = _recipe(name), _check(name, *words)
    processor = recipe.read_processor(arguments.checkpoint)
    call = recipe.prepare(processor, arguments)
    model_class = getattr(transformers, recipe.model_class)
    model = model_class.from_pretrained(arguments.checkpoint, dtype=torch.float32).eval()
    return recipe.describe(processor, call, model.generate(**call))


@pytest.mark.parametrize("language", ["en", pytest.param("it", marks=pytest.mark.slow)])
def test_the_tiny_whisper_hears_notes_and_their_times(language: str, tmp_path: Path) -> None:
    """In seven segments or more, each of which begins where the last whole phrase before it ends."""
    lines = _lines("whisper", "--output", str(tmp_path), "--language", language)
    phrases = melodies.whole_phrases(36, seed=7)
    wanted = [
        f"  {phrase.start / 10:6.2f} to {phrase.end / 10:6.2f} {phrase.text(language)}" for phrase in phrases
    ]
    assert lines[1:] == wanted


def test_the_answer_depends_on_the_image(tmp_path: Path) -> None:
    files = _recipe("vision_language").write_examples(tmp_path)
    words = [word for file in files for word in ("--image", str(file))]
    lines = _lines("vision_language", "--output", str(tmp_path), *words)
    answers = [line.split(": ")[1] for line in lines]
    assert answers == ["a red square left of a blue square", "a green triangle"]
    # The images are of other sizes, so that one row is padded.
    columns = [re.search(r"(\d+) of (\d+) columns", line) for line in lines]
    assert [match[1] == match[2] for match in columns if match] == [True, False]
    swapped = [word for file in files[::-1] for word in ("--image", str(file))]
    assert [line.split(": ")[1] for line in _lines("vision_language", *swapped)] == answers[::-1]
    counted = _lines("vision_language", *words, "--prompt", shapes.HOW_MANY)
    assert [line.split(": ")[1] for line in counted] == ["two", "one"]


def test_what_the_examples_are_made_of_can_be_written_again(tmp_path: Path) -> None:
    for name in NAMES:
        arguments = _check(name, "--output", str(tmp_path / name))
        files = getattr(arguments, _recipe(name).option)
        assert files
        assert all(file.is_file() for file in files)
    (long,) = _check("whisper", "--output", str(tmp_path / "whisper")).audio
    assert len(read_recording(long, 16_000)) > 30 * 16_000


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_recordings_of_any_width_have_the_same_samples(width: int, tmp_path: Path) -> None:
    """Two channels of different sounds, whose mean is read."""
    wanted = np.array([0.0, 0.5, -0.5, -1.0, 0.25])
    integers = (wanted * 2 ** (8 * width - 1)).astype(np.int64)
    frames = b""
    for sample in integers:
        for channel in (sample, 0):
            number = int(channel) + (128 if width == 1 else 0)
            frames += struct.pack("<q", number)[:width]
    with wave.open(str(tmp_path / "sound.wav"), "wb") as recording:
        recording.setparams((2, width, 16_000, 0, "NONE", ""))
        recording.writeframes(frames)
    np.testing.assert_array_equal(read_recording(tmp_path / "sound.wav", 16_000), wanted / 2)


def test_a_recording_of_another_rate_is_resampled(tmp_path: Path) -> None:
    seconds = np.arange(44_100) / 44_100
    write_recording(tmp_path / "tone.wav", 0.5 * np.sin(2 * np.pi * 440 * seconds), 44_100)
    sound = read_recording(tmp_path / "tone.wav", 16_000)
    wanted = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    assert len(sound) == 16_000
    np.testing.assert_allclose(sound[100:-100], wanted[100:-100], atol=2e-3)


def test_what_cannot_be_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    text = tmp_path / "text.wav"
    text.write_text("no sound")
    write_recording(tmp_path / "empty.wav", np.zeros(0), 16_000)
    llama = ROOT / "recipes/llama/checkpoint"
    cases = [
        ("whisper", ("--audio", str(tmp_path / "none.wav")), "No such file"),
        ("whisper", ("--audio", str(text)), r"(?s)cannot be read.*ffmpeg"),
        ("whisper", ("--audio", str(tmp_path / "empty.wav")), "no sound"),
        ("whisper", ("--task", "sing"), "transcribe or translate"),
        ("whisper", ("--checkpoint", str(llama)), r"(?s)of a llama.*one of whisper"),
        ("vision_language", ("--checkpoint", str(llama)), r"(?s)of a llama.*AutoModelForImageTextToText"),
        ("vision_language", ("--checkpoint", str(tmp_path / "nowhere")), "no such directory"),
        ("vision_language", ("--checkpoint", str(tmp_path)), "names no model_type"),
        ("vision_language", ("--image", str(text)), r"(?s)image cannot be read.*PNG or JPEG"),
        ("vision_language", ("--tp", "3"), r"(?s)4 heads cannot be shared by 3.*1, 2, 4"),
        ("vision_language", ("--dp", "3"), r"3 devices cannot share 2 rows"),
        (
            "vision_language",
            ("--prompt", "a", "--prompt", "b", "--prompt", "c"),
            "3 questions about 2 images",
        ),
        ("vision_language", ("--dtype", "float16"), "float16"),
        ("vision_language", ("--output", str(text)), "is a file"),
    ]
    for name, words, message in cases:
        output = () if "--output" in words else ("--output", str(tmp_path / "examples"))
        with pytest.raises(PortError, match=message):
            _check(name, *words, *output)
    with pytest.raises(SystemExit):
        _check("whisper", "--compare", "--dtype", "bfloat16")


@pytest.mark.parametrize(
    ("language", "is_known"), [("Italian", True), ("<|en|>", True), ("de", False), ("klingon", False)]
)
def test_a_language_has_a_token_in_the_checkpoint(language: str, is_known: bool) -> None:
    from recipes.whisper.__main__ import check_language

    tokenizer = SimpleNamespace(get_vocab=lambda: {"<|en|>": 1, "<|it|>": 2})
    processor = SimpleNamespace(tokenizer=tokenizer)
    if is_known:
        check_language(processor, language)
        return
    with pytest.raises(PortError, match=rf"(?s)no language '{language}'.*en, it"):
        check_language(processor, language)


def test_a_checkpoint_without_its_processor_is_refused(tmp_path: Path) -> None:
    for name in NAMES:
        source = ROOT / "recipes" / name / "checkpoint"
        silent = tmp_path / name
        shutil.copytree(source, silent, ignore=shutil.ignore_patterns("*token*", "*processor*"))
        with pytest.raises(PortError, match="the processor cannot be read"):
            _recipe(name).read_processor(silent)


def test_a_llava_is_asked_with_its_own_processor(tmp_path: Path) -> None:
    """Another kind than the tiny model: images of one size, and no chat template."""
    from recipes.llama.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(256)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=16)
    processor = transformers.LlavaProcessor(
        images, tokenizer, patch_size=8, vision_feature_select_strategy="full"
    )
    processor.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(
        '{"model_type": "llava", "text_config": {"num_attention_heads": 4}}'
    )
    Image.new("RGB", (20, 30)).save(tmp_path / "one.png")
    words = ("--checkpoint", str(tmp_path), "--image", str(tmp_path / "one.png"), "--prompt", " Hello")
    arguments = _check("vision_language", *words, "--tp", "2")
    call = _recipe("vision_language").prepare(read_processor(tmp_path), arguments)
    assert call["pixel_values"].shape == (1, 3, 16, 16)
    image, text = [tokenizer.convert_tokens_to_ids("<image>")] * 4, list(b" Hello")
    assert call["input_ids"].tolist() == [image + text]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(), ("--cpu-devices", "4", "--dp", "2", "--tp", "2")])
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_generates_what_torch_generates(name: str, mesh: tuple[str, ...], tmp_path: Path) -> None:
    files = []
    if name == "whisper" and mesh:
        files = ["--audio", str(tmp_path / "a.wav"), "--audio", str(tmp_path / "b.wav")]
        for seed, file in enumerate(files[1::2]):
            write_recording(Path(file), melodies.recording(9, seed), melodies.SAMPLING_RATE)
    command = [sys.executable, "-m", f"recipes.{name}", "--output", str(tmp_path / "out"), *files, *mesh]
    # The recipe itself asks for devices.
    env = os.environ | {"XLA_FLAGS": re.sub(r"\S+device_count=\d+", "", os.environ["XLA_FLAGS"])}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torch generates the same" in done.stdout
    # What the patches let run is an error to the linter.
    errors = re.findall(r"^  modeling_\w+\.py:\d+ TPU\d+: ", done.stdout, re.MULTILINE)
    verdict = re.search(r"^lint: modeling_\w+\.py, \d+ lines\. (Not e|E)xpected", done.stdout, re.MULTILINE)
    assert verdict
    assert (verdict[1] == "Not e") == bool(errors), done.stdout
