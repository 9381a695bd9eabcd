"""Recordings from and to WAV files."""

import math
import wave
from pathlib import Path

import numpy as np
from scipy.signal import resample_poly

import tpuport

_FFMPEG = "ffmpeg -i FILE -ac 1 -ar 16000 -c:a pcm_s16le recording.wav"


def read_recording(file: Path, sampling_rate: int) -> np.ndarray:
    """The samples of a WAV file of 8, 16, 24 or 32-bit PCM, at another rate if need be.

    Returns:
        float32 [samples] from -1 to 1; the mean of all channels.

    Raises:
        PortError: the file is not there, is something else, or has no sound.
    """
    try:
        with wave.open(str(file), "rb") as recording:
            channels, width, rate = recording.getparams()[:3]
            frames = recording.readframes(recording.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        what = f"the recording cannot be read: {error or 'it ends too early'}"
        fix = f"give a WAV file of integers (PCM); `{_FFMPEG}` makes one"
        raise tpuport.PortError(what, where=str(file), fix=fix) from error
    samples = _as_floats(frames[: len(frames) // (width * channels) * width * channels], width)
    if not len(samples):
        raise tpuport.PortError("the recording has no sound", where=str(file), fix="give a longer one")
    sound = samples.reshape(-1, channels).mean(axis=1)
    if rate != sampling_rate:
        common = math.gcd(rate, sampling_rate)
        sound = resample_poly(sound, sampling_rate // common, rate // common)
    return sound.astype(np.float32)


def _as_floats(frames: bytes, width: int) -> np.ndarray:
    """Integers of `width` bytes as numbers from -1 to 1."""
    if width == 1:  # the only width without a sign
        return (np.frombuffer(frames, np.uint8).astype(np.float32) - 128) / 128
    # The upper bytes of 32 bits.
    integers = np.zeros((len(frames) // width, 4), np.uint8)
    integers[:, 4 - width :] = np.frombuffer(frames, np.uint8).reshape(-1, width)
    return integers.view("<i4")[:, 0].astype(np.float32) / 2**31


def write_recording(file: Path, sound: np.ndarray, sampling_rate: int) -> None:
    """Write samples [samples] from -1 to 1 as 16-bit PCM."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(file), "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(sampling_rate)
        recording.writeframes((np.clip(sound, -1, 1) * 32767).round().astype("<i2").tobytes())
