"""Configuration fields and inputs of transformers' classes that read or make sound; see `tiny_transformers_table`."""

from typing import Any

import torch

from benchmarks.tiny_transformers_table import BATCH, ids, padded

CONFIGS: dict[str, dict[str, Any]] = {
    "Clap": {"audio_config": {
        "patch_embeds_hidden_size": 16, "hidden_size": 128, "num_attention_heads": [1, 2, 4, 8],
    }},
    "Csm": {"num_codebooks": 4, "depth_decoder_config": {"num_codebooks": 4}},
    "Gemma4AudioModel": {"output_proj_dims": 64, "subsampling_conv_channels": [16, 8]},
    "KyutaiSpeechToText": {"num_codebooks": 4},
    "MuseSparkAudioModel": {"num_hidden_layers": 4},
    "Wav2Vec2BertForCTC": {"vocab_size": 256},
    "Wav2Vec2ConformerForCTC": {"vocab_size": 256},
    "Nemotron3_5TranscribeWordTimestampModel": {"num_key_value_heads": None},
}  # fmt: skip


def _features(width: int, mask: str, **options: Any) -> Any:
    """What makes 96 frames of so many features, and a mask of this name that pads the second row."""

    def make() -> dict[str, Any]:
        frames = torch.ones(BATCH, 96, **options)
        frames[1, -32:] = 0
        return {"input_features": torch.randn(BATCH, 96, width), mask: frames}

    return make


def _second_of_sound() -> dict[str, Any]:
    """16,000 samples a row, of which the second row has fewer: vectors of speakers come from many frames."""
    return {"input_values": torch.randn(BATCH, 16_000), "attention_mask": padded(BATCH, 16_000)}


def _speech_of_text() -> dict[str, Any]:
    """Text of the 81 characters of the class, and the spectrogram until now."""
    return {
        "input_ids": torch.randint(5, 80, (BATCH, 16)), "attention_mask": padded(BATCH, 16),
        "decoder_input_values": torch.randn(BATCH, 12, 80), "speaker_embeddings": torch.randn(BATCH, 512),
    }  # fmt: skip


INPUTS: dict[str, Any] = {
    "SpeechT5ForSpeechToText": lambda: {"decoder_input_ids": torch.randint(5, 80, (BATCH, 6))},
    "Clap": lambda: {
        "input_features": torch.randn(BATCH, 1, 1001, 64), "is_longer": torch.tensor([[True], [False]]),
    },
    "Data2VecAudioForXVector": _second_of_sound,
    "UniSpeechSatForXVector": _second_of_sound,
    "Wav2Vec2ConformerForXVector": _second_of_sound,
    "Wav2Vec2ForXVector": _second_of_sound,
    "Wav2Vec2Bert": _features(64, "attention_mask", dtype=torch.long),
    "SeamlessM4TForSpeechToText": _features(64, "attention_mask", dtype=torch.long),
    "SeamlessM4Tv2ForSpeechToText": _features(64, "attention_mask", dtype=torch.long),
    "FunAsrNanoEncoder": _features(560, "input_features_mask", dtype=torch.long),
    "Gemma3nAudioEncoder": lambda: {
        "audio_mel": torch.randn(BATCH, 96, 128), "audio_mel_mask": ~padded(BATCH, 96).bool(),
    },
    "Gemma4AudioModel": _features(16, "attention_mask", dtype=torch.bool),
    "GraniteSpeech5": _features(320, "attention_mask", dtype=torch.long),
    # A token of text and four of sound in each column.
    "KyutaiSpeechToText": lambda: {"input_ids": ids(BATCH, 16, 5)},
    "MimiDecoderModel": lambda: {"latents": torch.randn(BATCH, 64, 6)},
    "MuseSparkAudioModel": lambda: {"input_values": torch.randn(BATCH, 3 * 1920)},
    "Nemotron3_5TranscribeWordTimestampModel": lambda: {
        "inputs_embeds": torch.randn(BATCH, 8, 64), "attention_mask": padded(BATCH, 8),
    },
    # Ten frames of 320 samples.
    "NeuCodec": lambda: {
        "input_values": torch.randn(BATCH, 1, 3200), "input_features": torch.randn(BATCH, 10, 64),
    },
    "PocketTTSAudioTokenizerDecoder": lambda: {"latents": torch.randn(BATCH, 64, 6)},
    "SpeechT5ForTextToSpeech": _speech_of_text,
    # Long enough for the five convolutions over its frames.
    "WavLMForXVector": lambda: {"input_values": torch.randn(BATCH, 12_000), "attention_mask": padded(BATCH, 12_000)},
}  # fmt: skip
