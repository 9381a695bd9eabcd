"""Recordings of melodies, which the tiny Whisper writes down: sound, and the names of its notes with their times.

Times are counted in ticks of 0.1 s, so that every note begins at one of Whisper's timestamps, which are 0.02 s apart.
"""

import dataclasses

import numpy as np

SAMPLING_RATE = 16_000
TICKS = 10  # in a second
NOTE_TICKS = 4
NAMES = {"en": "C D E F G A B".split(), "it": "do re mi fa sol la si".split()}
_SEMITONES = (0, 2, 4, 5, 7, 9, 11)
_LOWEST = (
    1046.5  # Hz: C6; an octave lower, neighbouring notes would share their bands of Whisper's spectrogram
)


@dataclasses.dataclass(frozen=True)
class Phrase:
    """Notes without a pause between them.

    Attributes:
        start: tick of its first note.
        notes: numbers from 0 (C) to 6 (B), each of `NOTE_TICKS`.
    """

    start: int
    notes: tuple[int, ...]

    @property
    def end(self) -> int:
        """The tick after its last note."""
        return self.start + NOTE_TICKS * len(self.notes)

    def text(self, language: str) -> str:
        """The names of its notes, each after a space, as Whisper writes words."""
        return "".join(f" {NAMES[language][note]}" for note in self.notes)


def compose(ticks: int, generator: np.random.Generator) -> list[Phrase]:
    """Phrases of two to four notes with pauses of 0.5 to 1.2 s; the last one may go on beyond `ticks`."""
    phrases = []
    start = int(generator.integers(0, 12))
    while start < ticks:
        notes = generator.integers(0, len(_SEMITONES), int(generator.integers(2, 5)))
        phrases.append(Phrase(start, tuple(int(note) for note in notes)))
        start = phrases[-1].end + int(generator.integers(5, 13))
    return phrases


def play(phrases: list[Phrase], ticks: int, generator: np.random.Generator) -> np.ndarray:
    """The sound [samples] of so many ticks, float32 from -1 to 1, with a little noise."""
    tick = SAMPLING_RATE // TICKS
    sound = np.zeros((ticks + NOTE_TICKS * len(_SEMITONES)) * tick)
    seconds = np.arange(NOTE_TICKS * tick) / SAMPLING_RATE
    envelope = np.minimum(seconds / 0.02, 1) * np.exp(-4 * seconds)
    for phrase in phrases:
        for index, note in enumerate(phrase.notes):
            pitch = 2 * np.pi * _LOWEST * 2 ** (_SEMITONES[note] / 12) * seconds
            first = (phrase.start + index * NOTE_TICKS) * tick
            sound[first : first + len(seconds)] += envelope * (np.sin(pitch) + 0.3 * np.sin(2 * pitch))
    sound = sound[: ticks * tick] * generator.uniform(0.2, 0.7)
    return (sound + generator.normal(0, 0.002, len(sound))).astype(np.float32)


def whole_phrases(seconds: int, seed: int) -> list[Phrase]:
    """The phrases of a melody of this length, the last of which ends within it; the same seed gives the same ones."""
    ticks = seconds * TICKS
    return [phrase for phrase in compose(ticks, np.random.default_rng(seed)) if phrase.end <= ticks]


def recording(seconds: int, seed: int) -> np.ndarray:
    """The sound [samples] of `whole_phrases`."""
    return play(whole_phrases(seconds, seed), seconds * TICKS, np.random.default_rng(seed))
