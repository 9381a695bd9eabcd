"""Why classes have no row in docs/coverage.md."""

_DETECTRON = "it needs detectron2, which is not among the packages of PyPI"
_NATTEN = "it needs functions of natten (`natten2dqkrpb`) that its releases for this torch no longer have"
_SESSION = (
    'a call takes a session, which has a device (`inference_device="jax"`) and is filled frame by frame: here calls '
    "of tensors alone are compared, and sessions in `tests/compilation/test_video_sessions.py`"
)
_LARGE_SESSION = (
    "a call takes a session, as those of SAM 2; no small configuration of its detector and tracker is known"
)

# By class, from its own code or from what it raises.
REASONS = {
    "ControlNetXSAdapter": "its `forward` refuses to run but as a part of `UNetControlNetXSModel`",
    "Apertus1p5VisionTokenizerModel": "it has no `forward`: `Apertus1p5Model` calls its `encode`",
    "ChameleonVQVAE": "it has no `forward`: `ChameleonModel` calls its `encode`",
    "DinatBackbone": _NATTEN,
    "DinatForImageClassification": _NATTEN,
    "DinatModel": _NATTEN,
    "EdgeTamVideoModel": _SESSION,
    "Emu3VQVAE": "it has no `forward`: `Emu3Model` calls its `encode`",
    "EsmFold2Model": (
        "a call takes the tokens, atoms, bonds and chains of a complex of molecules; no small ones are known here"
    ),
    "Gemma4AssistantForCausalLM": (
        "transformers cannot construct it: it wants all layers to share keys, and then says 'The set of layer types "
        "producing a cache is different than the set of layer types using them'"
    ),
    "GlmImageVQVAE": "it has no `forward`: `GlmImageModel` calls its `encode`",
    "LayoutLMv2ForQuestionAnswering": _DETECTRON,
    "LayoutLMv2ForSequenceClassification": _DETECTRON,
    "LayoutLMv2ForTokenClassification": _DETECTRON,
    "LayoutLMv2Model": _DETECTRON,
    "Qwen3OmniMoeCode2WavDecoderBlock": "it is one block of `Qwen3OmniMoeCode2Wav`, which gives it its number",
    "Sam2VideoModel": _SESSION,
    "Sam3TrackerVideoModel": _SESSION,
    "Sam3VideoModel": _LARGE_SESSION,
}
