"""The classes of caches and outputs that are registered as pytrees, by name."""

from typing import Final

# Caches of single models that have no common base, by the models' names.
_MODEL_CACHES = {
    "kyutai_speech_to_text": "KyutaiSpeechToTextConv1dPaddingCache",
    "mimi": "MimiConv1dPaddingCache",
    "muse_spark": "MuseSparkAudioConv1dCacheLayer MuseSparkAudioConv1dPaddingCache",
    "nemotron3_diarization": "Nemotron3DiarizationSpeakerCache",
    "nemotron_asr_streaming": (
        "NemotronAsrStreamingEncoderCausalConv1dCacheLayer NemotronAsrStreamingEncoderCausalConv2dCacheLayer "
        "NemotronAsrStreamingEncoderCausalConvPaddingCache NemotronAsrStreamingConv1dCacheLayer "
        "NemotronAsrStreamingConv1dPaddingCache"
    ),
    "pocket_tts_audio_tokenizer": "PocketTTSAudioTokenizerConv1dPaddingCache",
    "reformer": "ReformerDynamicCache",
    "vibevoice_acoustic_tokenizer": (
        "VibeVoiceAcousticTokenizerConv1dCacheLayer VibeVoiceAcousticTokenizerConv1dPaddingCache"
    ),
    "vibevoice_asr": "VibeVoiceAsrConv1dCacheLayer VibeVoiceAsrConv1dPaddingCache",
    "voxtral_realtime": "VoxtralRealtimeConv1dCacheLayer VoxtralRealtimeConv1dPaddingCache",
    "xlstm": "xLSTMCache",
}
# Classes by the module that defines them; classes derived from them are registered as
# well.
REGISTERED: Final = {
    "transformers.cache_utils": (
        "Cache",
        "CacheLayerMixin",
        "LinearAttentionCacheLayerMixin",
        "DummyLayer",
        "KVSharingDict",
    ),
    "transformers.utils.generic": ("ModelOutput",),
    "diffusers.utils.outputs": ("BaseOutput",),
    "diffusers.models.transformers.transformer_flux2": (
        "Flux2KVCache",
        "Flux2KVLayerCache",
    ),
} | {
    f"transformers.models.{name}.modeling_{name}": tuple(classes.split())
    for name, classes in _MODEL_CACHES.items()
}
