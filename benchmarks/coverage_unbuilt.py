"""Why classes have no row in docs/coverage.md: what keeps `benchmarks.tiny_models` from building them."""

_NO_FORWARD = "it has no `forward`: it only generates, with models that have rows of their own"
_TIMM = "it reads images with a model of timm, another library, which is not among this benchmark's packages"
_DETECTRON = "it needs the package detectron2, which is not among this benchmark's packages"
_SESSION = (
    "a call takes a session that it fills in Python, frame by frame; only calls of tensors are compared here"
)

# By class, from its own code or from what it raises.
REASONS = {
    "BarkModel": _NO_FORWARD,
    "ControlNetXSAdapter": "its `forward` refuses to run but as a part of `UNetControlNetXSModel`",
    "DinatForImageClassification": "it needs the package natten, which is not among this benchmark's packages",
    "DinatModel": "it needs the package natten, which is not among this benchmark's packages",
    "EdgeTamModel": _TIMM,
    "EdgeTamVideoModel": _SESSION,
    "EdgeTamVisionModel": _TIMM,
    "FastVlmForConditionalGeneration": _TIMM,
    "FastVlmModel": _TIMM,
    "Gemma3nForConditionalGeneration": _TIMM,
    "Gemma3nModel": _TIMM,
    "Gemma4AssistantForCausalLM": (
        "transformers does not construct it: it wants all layers to share keys, and refuses a configuration in which "
        "none makes them"
    ),
    "GlmImageVQVAE": _NO_FORWARD,
    "HiggsAudioV2TokenizerModel": (
        "it needs the package torchaudio, which is not among this benchmark's packages"
    ),
    "LayoutLMv2ForSequenceClassification": _DETECTRON,
    "LayoutLMv2Model": _DETECTRON,
    "PeAudioVideoEncoder": _TIMM,
    "PeAudioVideoModel": _TIMM,
    "PeVideoEncoder": _TIMM,
    "PeVideoModel": _TIMM,
    "PerceptionLMForConditionalGeneration": _TIMM,
    "PerceptionLMModel": _TIMM,
    "Qwen2_5OmniForConditionalGeneration": _NO_FORWARD,
    "Qwen3OmniMoeForConditionalGeneration": _NO_FORWARD,
    "Sam2VideoModel": _SESSION,
    "Sam3TrackerVideoModel": _SESSION,
    "Sam3VideoModel": _SESSION,
    "VoxtralRealtimeTextModel": "transformers lists it, but does not export it",
}
NOT_RUN = "a small configuration and inputs are known now; it has not been run yet"
