"""Configuration fields and inputs of transformers' classes that read or make sound; see `tiny_transformers_table`."""

from typing import Any

import torch

from benchmarks.tiny_transformers_table import BATCH, ids, padded

# The last of seven stages has 64 times as many.
_FEW_FILTERS = {"num_filters": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "Clap": {"audio_config": {
        "patch_embeds_hidden_size": 16, "hidden_size": 128, "num_attention_heads": [1, 2, 4, 8],
    }},
    "Csm": {"num_codebooks": 4, "depth_decoder_config": {"num_codebooks": 4}},
    "Gemma4AudioModel": {"output_proj_dims": 64, "subsampling_conv_channels": [16, 8]},
    # 25 codes a second from 24,000 samples, as checkpoints have it.
    "HiggsAudioV2Tokenizer": {
        "acoustic_model_config": {
            "downsampling_ratios": [8, 5, 4, 2, 3], "upsampling_ratios": [8, 5, 4, 2, 3], "encoder_hidden_size": 2,
        },
    },
    "KyutaiSpeechToText": {"num_codebooks": 4, "codec_config": {"num_quantizers": 4}},
    "MuseSparkAudioModel": {"num_hidden_layers": 4},
    # With smaller weights all codes are those of silence.
    "NeuCodec": {"quantization_dim": 128, "num_key_value_heads": 4, "initializer_range": 0.1},
    # It drops out values of the spectrogram in evaluation, too.
    "SpeechT5ForTextToSpeech": {"speech_decoder_prenet_dropout": 0.0},
    "SpeechT5Model": {"speech_decoder_prenet_dropout": 0.0},
    "VibeVoiceFor": {"audio_config": _FEW_FILTERS, "semantic_model_config": _FEW_FILTERS},
    "VibeVoiceAcoustic": _FEW_FILTERS,
    "Wav2Vec2BertForCTC": {"vocab_size": 256},
    "Wav2Vec2ConformerForCTC": {"vocab_size": 256},
    "Xcodec2": {"quantization_dim": 128, "num_key_value_heads": 4},
    "XcodecModel": {"codebook_dim": 128},
    "Nemotron3_5TranscribeWordTimestampModel": {"num_key_value_heads": None},
}  # fmt: skip


def _features(width: int, mask: str, dtype: torch.dtype | None = None, **others: Any) -> Any:
    """What makes 96 frames of so many features, a mask of this name that pads the second row, and other arguments."""

    def make() -> dict[str, Any]:
        frames = torch.ones(BATCH, 96, dtype=dtype)
        frames[1, -32:] = 0
        return {"input_features": torch.randn(BATCH, 96, width), mask: frames, **others}

    return make


def _padded_sound() -> dict[str, Any]:
    """4,000 samples a row in one channel, of which the second row has fewer."""
    mask = torch.ones(BATCH, 4000, dtype=torch.long)
    mask[1, -1000:] = 0
    return {"input_values": torch.randn(BATCH, 1, 4000), "padding_mask": mask}


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
    # It needs torchaudio, which is not among this project's packages; beside a torch for CPUs its Python alone, without
    # `torchaudio/lib/*.so`.
    "HiggsAudioV2Tokenizer": lambda: {"input_values": torch.randn(BATCH, 1, 7680)},
    "SpeechT5ForSpeechToText": lambda: {"decoder_input_ids": torch.randint(5, 80, (BATCH, 6))},
    "Clap": lambda: {
        "input_features": torch.randn(BATCH, 1, 1001, 64), "is_longer": torch.tensor([[True], [False]]),
    },
    "Data2VecAudioForXVector": _second_of_sound,
    "UniSpeechSatForXVector": _second_of_sound,
    "Wav2Vec2ConformerForXVector": _second_of_sound,
    "Wav2Vec2ForXVector": _second_of_sound,
    "Wav2Vec2Bert": _features(64, "attention_mask", dtype=torch.long),
    "SeamlessM4TForSpeechTo": _features(64, "attention_mask", dtype=torch.long),
    "SeamlessM4Tv2ForSpeechTo": _features(64, "attention_mask", dtype=torch.long),
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
    "OmniASRAudio": _padded_sound,
    "OmniASRCTC": _padded_sound,
    "OmniASRForCTC": _padded_sound,
    "PocketTTSAudioTokenizerDecoder": lambda: {"latents": torch.randn(BATCH, 64, 6)},
    "SeamlessM4TModel": _features(64, "attention_mask", input_ids=None, dtype=torch.long),
    "SeamlessM4Tv2Model": _features(64, "attention_mask", input_ids=None, dtype=torch.long),
    "SpeechEncoderDecoder": lambda: {
        "input_values": torch.randn(BATCH, 4000), "input_features": None, "attention_mask": padded(BATCH, 4000),
    },
    "SpeechT5ForTextToSpeech": _speech_of_text,
    "VibeVoiceAcousticTokenizerDecoder": lambda: {"hidden_states": torch.randn(BATCH, 64, 4)},
    "VibeVoiceAcousticTokenizerEncoder": lambda: {"hidden_states": torch.randn(BATCH, 1, 6400)},
    "UnivNet": lambda: {"noise_sequence": torch.randn(BATCH, 96, 64)},
    # Without noise that is drawn.
    "VibeVoiceAcousticTokenizerModel": lambda: {"input_values": torch.randn(BATCH, 1, 6400), "sample": False},
    # Eight frames for each of 16 tokens.
    "VoxtralRealtime": lambda: {"input_features": torch.randn(BATCH, 128, 128)},
    "Xcodec2": lambda: {"input_values": torch.randn(BATCH, 1, 3200), "input_features": torch.randn(BATCH, 10, 64)},
    "WavTokenizer": lambda: {"input_values": torch.randn(BATCH, 1, 2400)},
    # Long enough for the five convolutions over its frames.
    "WavLMForXVector": lambda: {"input_values": torch.randn(BATCH, 12_000), "attention_mask": padded(BATCH, 12_000)},
}  # fmt: skip
