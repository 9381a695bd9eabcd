"""`transformers.pipeline` of each task that runs offline: the same results with a ported model as with it in torch."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers as tf
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers.decision.configuration_utils import DecisionConfig
from transformers.pipelines import SUPPORTED_TASKS

import tpuport

# Of models that ask for int64, where `tpuport.enable` is not in force.
pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
SPECIAL = ["<pad>", "<eos>", "<unk>", "<cls>", "<sep>", "<mask>", "<image>"]
WORDS = [*SPECIAL, *(f"w{number}" for number in range(57))]
TEXT = "w1 w5 w9 w2"
SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
BERT = tf.BertConfig(vocab_size=64, max_position_embeddings=64, pad_token_id=0, num_labels=3, **SIZES)
VISION: dict[str, Any] = {**SIZES, "image_size": 32, "patch_size": 8}
Case = tuple[Any, dict[str, Any], Any, dict[str, Any]]


def tokenizer(**options: Any) -> Any:
    """Words of numbers, between <cls> and <sep>."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="<cls> $A <sep>", pair="<cls> $A <sep> $B:1 <sep>:1",
        special_tokens=[("<cls>", vocabulary["<cls>"]), ("<sep>", vocabulary["<sep>"])],
    )  # fmt: skip
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", cls_token="<cls>",
        sep_token="<sep>", mask_token="<mask>", model_max_length=32, **options,
    )  # fmt: skip


def picture(seed: int = 0) -> Image.Image:
    """Noise of 40 x 48 pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (48, 40, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def sound(seed: int = 0) -> np.ndarray:
    """Noise of a quarter of a second."""
    return np.random.default_rng(seed).standard_normal(4000).astype(np.float32)


def vit_processor() -> Any:
    return tf.ViTImageProcessor(size={"height": 32, "width": 32})


def text_case(model_class: Any, text: Any = TEXT, **call: Any) -> Case:
    return model_class(copy.deepcopy(BERT)), {"tokenizer": tokenizer()}, text, call


def zero_shot() -> Case:
    config = copy.deepcopy(BERT)
    config.id2label = {0: "contradiction", 1: "neutral", 2: "entailment"}
    config.label2id = {label: number for number, label in config.id2label.items()}
    model = tf.BertForSequenceClassification(config)
    call = {"candidate_labels": ["w3", "w4 w7"], "hypothesis_template": "w8 {}"}
    return model, {"tokenizer": tokenizer()}, TEXT, call


def layout_document() -> Case:
    config = tf.LayoutLMConfig(
        vocab_size=64, max_position_embeddings=64, max_2d_position_embeddings=1024, **SIZES
    )
    words = [("w1", [0, 0, 100, 50]), ("w9", [100, 0, 300, 50]), ("w3", [0, 60, 200, 110])]
    question = {"image": None, "question": "w2 w4", "word_boxes": words}
    return tf.LayoutLMForQuestionAnswering(config), {"tokenizer": tokenizer()}, question, {}


def llama() -> Case:
    config = tf.LlamaConfig(
        vocab_size=64, max_position_embeddings=64, bos_token_id=3, eos_token_id=1, pad_token_id=0, **SIZES
    )
    model = tf.LlamaForCausalLM(config)
    return (
        model,
        {"tokenizer": tokenizer(padding_side="left")},
        TEXT,
        {"max_new_tokens": 6, "do_sample": False},
    )


def wav2vec2(model_class: Any) -> Case:
    config = tf.Wav2Vec2Config(
        vocab_size=32, conv_dim=(16, 16), conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, classifier_proj_size=16, num_labels=3, **SIZES,
    )  # fmt: skip
    arguments: dict[str, Any] = {"feature_extractor": tf.Wav2Vec2FeatureExtractor()}
    if model_class is tf.Wav2Vec2ForCTC:
        arguments["tokenizer"] = tokenizer()
    return model_class(config), arguments, sound(), {}


def clip() -> Case:
    text = {
        **SIZES,
        "vocab_size": 64,
        "max_position_embeddings": 32,
        "eos_token_id": 4,
        "bos_token_id": 3,
        "pad_token_id": 0,
    }
    model = tf.CLIPModel(tf.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=16))
    processor = tf.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    arguments = {"tokenizer": tokenizer(), "image_processor": processor}
    call = {"candidate_labels": ["w3", "w4 w7", "w9 w2 w1"], "hypothesis_template": "w8 {}"}
    return model, arguments, picture(), call


def clap() -> Case:
    text = {**SIZES, "vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": 0}
    audio = {
        "hidden_size": 32, "patch_embeds_hidden_size": 16, "depths": [1, 1], "num_attention_heads": [2, 2],
        "num_hidden_layers": 2, "spec_size": 128, "patch_size": 4, "patch_stride": [4, 4], "window_size": 4,
        "num_mel_bins": 64, "enable_fusion": False,
    }  # fmt: skip
    model = tf.ClapModel(tf.ClapConfig(text_config=text, audio_config=audio, projection_dim=16))
    extractor = tf.ClapFeatureExtractor(
        feature_size=64, truncation="rand_trunc", max_length_s=1, nb_max_samples=48_000
    )
    arguments = {"tokenizer": tokenizer(), "feature_extractor": extractor}
    call = {"candidate_labels": ["w3", "w4 w7"], "hypothesis_template": "w8 {}"}
    return model, arguments, sound(), call


def image_case(model: Any, processor: Any = None, **call: Any) -> Case:
    return model, {"image_processor": processor or vit_processor()}, picture(), call


def vit(model_class: Any) -> Case:
    return image_case(model_class(tf.ViTConfig(num_labels=3, **VISION)))


def segformer() -> Case:
    config = tf.SegformerConfig(
        hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16,
        num_labels=3,
    )  # fmt: skip
    processor = tf.SegformerImageProcessor(size={"height": 64, "width": 64})
    return image_case(tf.SegformerForSemanticSegmentation(config), processor)


def yolos() -> Case:
    config = tf.YolosConfig(num_detection_tokens=6, num_labels=3, **{**VISION, "image_size": [48, 40]})
    processor = tf.YolosImageProcessor(size={"height": 48, "width": 40})
    return image_case(tf.YolosForObjectDetection(config), processor, threshold=0.0)


def owlvit() -> Case:
    text = {**SIZES, "vocab_size": 64, "max_position_embeddings": 16, "pad_token_id": 0}
    config = tf.OwlViTConfig(text_config=text, vision_config=VISION, projection_dim=32)
    processor = tf.OwlViTImageProcessor(size={"height": 32, "width": 32})
    arguments = {"tokenizer": tokenizer(), "image_processor": processor}
    call = {"candidate_labels": ["w3", "w4 w7"], "threshold": 0.0}
    return tf.OwlViTForObjectDetection(config), arguments, picture(), call


def glpn() -> Case:
    config = tf.GLPNConfig(
        hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16,
    )  # fmt: skip
    return image_case(tf.GLPNForDepthEstimation(config), tf.GLPNImageProcessor())


def llava() -> Case:
    text = {
        **SIZES,
        "vocab_size": 64,
        "max_position_embeddings": 64,
        "bos_token_id": 3,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    config = tf.LlavaConfig(
        vision_config=tf.CLIPVisionConfig(**VISION), text_config=tf.LlamaConfig(**text),
        image_token_id=WORDS.index("<image>"), vision_feature_select_strategy="full", vision_feature_layer=-1,
    )  # fmt: skip
    words = tokenizer(padding_side="left", extra_special_tokens={"image_token": "<image>"})
    images = tf.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor = tf.LlavaProcessor(
        image_processor=images, tokenizer=words, patch_size=8, vision_feature_select_strategy="full",
        num_additional_image_tokens=1,
    )  # fmt: skip
    call = {"text": "<image> w4 w7", "generate_kwargs": {"max_new_tokens": 6, "do_sample": False}}
    return tf.LlavaForConditionalGeneration(config), {"processor": processor}, picture(), call


def decision() -> Case:
    """The labels of the options are words of the tokenizer, scored by the logits of the token after the question."""
    model, arguments, _, _ = llama()
    labels = {"noul": ["w3", "w4"], "choice": ["w5", "w6"]}
    template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    arguments["tokenizer"].chat_template = template
    questions = {
        "sure": {"type": "noul", "instructions": "w7 w8"},
        "best": {"type": "choice", "instructions": "w9", "criteria": {"w10": "w11", "w12": "w13"}},
    }
    request = {"state": TEXT, "questions": questions}
    return model, {**arguments, "decision_config": DecisionConfig(labels=labels)}, request, {}


def vits() -> Case:
    config = tf.VitsConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, ffn_dim=32, flow_size=16, spectrogram_bins=9,
        upsample_initial_channel=16, upsample_rates=(2, 2), upsample_kernel_sizes=(4, 4), resblock_kernel_sizes=(3,),
        resblock_dilation_sizes=((1, 3),), duration_predictor_filter_channels=16, duration_predictor_num_flows=2,
        prior_encoder_num_flows=2, prior_encoder_num_wavenet_layers=1, posterior_encoder_num_wavenet_layers=1,
        use_stochastic_duration_prediction=False, noise_scale=0.0, pad_token_id=0,
    )  # fmt: skip
    return tf.VitsModel(config), {"tokenizer": tokenizer()}, TEXT, {}


def musicgen() -> Case:
    """Codes of sound from a text, and samples from the codes."""
    text = tf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)
    audio = tf.EncodecConfig(
        num_filters=4, hidden_size=16, upsampling_ratios=[4, 2], codebook_size=64, codebook_dim=16, num_lstm_layers=1,
        sampling_rate=2400,
    )  # fmt: skip
    codes = tf.MusicgenDecoderConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, ffn_dim=48, num_codebooks=2,
        pad_token_id=64, bos_token_id=64,
    )  # fmt: skip
    model = tf.MusicgenForConditionalGeneration(
        tf.MusicgenConfig(text_encoder=text, audio_encoder=audio, decoder=codes)
    )
    model.generation_config.update(decoder_start_token_id=64, pad_token_id=64)
    # Zeros in a new model; large enough that other codes are other sound.
    for layer in model.audio_encoder.quantizer.layers:
        layer.codebook.embed.normal_(std=100.0)
    call = {"generate_kwargs": {"max_new_tokens": 6, "do_sample": False}}
    return model, {"tokenizer": tokenizer()}, TEXT, call


def loftr() -> Case:
    config = tf.EfficientLoFTRConfig(
        stage_num_blocks=[1, 1, 1, 1], out_features=[16, 16, 32, 64], hidden_size=64, num_attention_layers=1,
        num_attention_heads=8, num_key_value_heads=8, coarse_matching_threshold=0.0, coarse_matching_border_removal=1,
    )  # fmt: skip
    processor = tf.EfficientLoFTRImageProcessor(size={"height": 64, "width": 64})
    model = tf.EfficientLoFTRForKeypointMatching(config)
    return model, {"image_processor": processor}, [picture(), picture(1)], {}


# Tasks whose pipelines need packages that neither transformers nor tpuport needs.
OTHER_PACKAGES = {
    "any-to-any": "torchvision",
    "mask-generation": "torchvision",
    "table-question-answering": "pandas",
    "video-classification": "av",
}
CASES: dict[str, Callable[[], Case]] = {
    "audio-classification": lambda: wav2vec2(tf.Wav2Vec2ForSequenceClassification),
    "automatic-speech-recognition": lambda: wav2vec2(tf.Wav2Vec2ForCTC),
    "decision": decision,
    "depth-estimation": glpn,
    "document-question-answering": layout_document,
    "feature-extraction": lambda: text_case(tf.BertModel),
    "fill-mask": lambda: text_case(tf.BertForMaskedLM, "w1 w5 <mask> w2"),
    "image-classification": lambda: vit(tf.ViTForImageClassification),
    "image-feature-extraction": lambda: vit(tf.ViTModel),
    "image-segmentation": segformer,
    "image-text-to-text": llava,
    "keypoint-matching": loftr,
    "object-detection": yolos,
    "text-classification": lambda: text_case(tf.BertForSequenceClassification),
    "text-generation": llama,
    "text-to-audio": musicgen,
    "token-classification": lambda: text_case(tf.BertForTokenClassification),
    "zero-shot-audio-classification": clap,
    "zero-shot-classification": zero_shot,
    "zero-shot-image-classification": clip,
    "zero-shot-object-detection": owlvit,
}


def enlarged(model: torch.nn.Module) -> torch.nn.Module:
    """The model with weights large enough that results depend on the input."""
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def assert_equal(ours: Any, theirs: Any) -> None:
    """The same structure with the same strings and images, and numbers that differ by rounding."""
    if isinstance(theirs, Mapping):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert_equal(ours[name], theirs[name])
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert_equal(mine, other)
    elif isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-4, rtol=1e-4)
    elif isinstance(theirs, Image.Image):
        # A rounding error may be a step of 1 in 255.
        np.testing.assert_allclose(np.asarray(ours, np.float32), np.asarray(theirs, np.float32), atol=1)
    elif isinstance(theirs, float | np.floating | np.ndarray):
        np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-4)
    else:
        assert ours == theirs


# A task in words, sound and pictures each, and one that generates; the others end in the same calls.
SAMPLE = {"automatic-speech-recognition", "document-question-answering", "fill-mask", "image-text-to-text"}


def test_each_task_of_transformers_is_compared_or_needs_another_package() -> None:
    assert sorted([*CASES, *OTHER_PACKAGES]) == sorted(SUPPORTED_TASKS)


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=[] if task in SAMPLE else pytest.mark.slow) for task in CASES]
)
def test_a_ported_model_gives_what_it_gives_in_torch(task: str) -> None:
    torch.manual_seed(0)
    model, arguments, given, call = CASES[task]()
    reference = enlarged(model)
    ported = tpuport.port(copy.deepcopy(reference), mesh=tpuport.create_mesh(devices=jax.devices()[:1]))
    run_torch, run = (tf.pipeline(task, model=each, **arguments) for each in (reference, ported))
    expected = run_torch(copy.deepcopy(given), **call)
    assert_equal(run(copy.deepcopy(given), **call), expected)


@pytest.mark.slow  # tests/generation/test_untraced_call.py
def test_speech_whose_length_the_model_predicts() -> None:
    """The number of samples depends on the values of the text, so that the model's code runs on the host."""
    model, arguments, text, _ = vits()
    reference = enlarged(model)
    ported = tpuport.port(copy.deepcopy(reference), mesh=tpuport.create_mesh(devices=jax.devices()[:1]))
    run_torch, run = (tf.pipeline("text-to-audio", model=each, **arguments) for each in (reference, ported))
    expected = run_torch(text)
    assert np.abs(expected["audio"]).max() > 0.01
    assert_equal(run(text), expected)
