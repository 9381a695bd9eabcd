"""What groups, masks, matches and measures with models of `benchmarks.tiny_strangers_thirteenth`.

The linter reads this file with them.
"""

import types
from typing import Any

import torch
from torch import nn


class Posed(nn.Module):
    """Peaks of heat maps, grouped to animals by fields along their edges."""

    def __init__(self) -> None:
        super().__init__()
        from sleap_nn.inference.ops import peaks
        from sleap_nn.inference.ops.identity import classify_peaks_from_maps
        from sleap_nn.inference.ops.paf import PAFScorer

        self.heat, self.fields = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(1, 4, 3, padding=1)
        self.peaks, self.classify = peaks, classify_peaks_from_maps
        self.scorer = PAFScorer(["a", "b", "c"], [("a", "b"), ("b", "c")], 1)

    def forward(self, images: torch.Tensor) -> Any:
        heat = self.heat(images)
        greatest = self.peaks.find_global_peaks(heat, 0.1, "integral")
        points, values, samples, channels = self.peaks.find_local_peaks(heat, 0.3, "integral")
        classes = self.classify(heat[:, :2].sigmoid(), points, values, samples, channels, 3)
        split = [[part[samples == i] for i in range(len(images))] for part in (points, values, channels)]
        fields = self.fields(images).permute(0, 2, 3, 1)
        return greatest, classes, self.scorer.predict(fields, *split)


class Sentences(nn.Module):
    """A tagger and chart classifier of words that a mask picks from their pieces."""

    def __init__(self) -> None:
        super().__init__()
        from lambeq.bobcat.tagger import BertForChartClassification, ChartClassifierConfig

        config = ChartClassifierConfig(
            empty_span_weight=0.5, tags=["a", "b"], cats=["c", "d", "e"], vocab_size=20, hidden_size=8,
            num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        )  # fmt: skip
        BertForChartClassification.all_tied_weights_keys = {}  # of a newer transformers
        self.model = BertForChartClassification(config)

    def forward(
        self, tokens: torch.Tensor, words: torch.Tensor, tags: torch.Tensor, spans: torch.Tensor
    ) -> Any:
        return self.model(tokens, word_mask=words, tag_labels=tags, span_labels=spans)


class Spoken(nn.Module):
    """A model of speech that unmasks its tokens in steps."""

    def __init__(self) -> None:
        super().__init__()
        from omnivoice.models import omnivoice
        from transformers import Qwen3Config, Qwen3Model

        text = Qwen3Config(
            vocab_size=30, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8,
        )  # fmt: skip
        config = omnivoice.OmniVoiceConfig(9, 8, 2, [1, 1], text)
        self.model, self.task = omnivoice.OmniVoice(config, Qwen3Model(text)), omnivoice.GenerationTask
        self.settings = omnivoice.OmniVoiceGenerationConfig(num_step=2)
        self.model.text_tokenizer = words

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> Any:
        task = self.task(
            batch_size=1, texts=["a"], target_lens=[4], langs=[None], instructs=[None], ref_texts=[None],
            ref_audio_tokens=[None], ref_rms=[None],
        )  # fmt: skip
        return self.model(tokens, mask, labels), self.model._generate_iterative(task, self.settings)


def words(text: str, return_tensors: str | None = None, **_: Any) -> Any:
    """A tokenizer that knows letters."""
    found = [ord(letter) % 30 for letter in text]
    return types.SimpleNamespace(input_ids=found if return_tensors is None else torch.tensor([found]))


class Clustered(nn.Module):
    """Modes of series that a matrix advances."""

    def __init__(self) -> None:
        super().__init__()
        from basicts.models.Koopa.arch.layers import KPLayer, KPLayerApprox

        self.layers = [KPLayer(), KPLayerApprox()]

    def forward(self, series: torch.Tensor) -> Any:
        return [layer(series, 2) for layer in self.layers]


class Cascaded(nn.Module):
    """A diffusion model of images by text."""

    def __init__(self) -> None:
        super().__init__()
        from minimagen.Imagen import Imagen
        from minimagen.Unet import Unet

        options: dict[str, Any] = {
            "dim": 8, "dim_mults": (1, 2), "text_embed_dim": 8, "num_resnet_blocks": 1, "attn_heads": 2,
            "layer_attns": False, "layer_cross_attns": (False, True),
        }  # fmt: skip
        self.model = Imagen(
            [Unet(**options)], text_encoder_name="t5_small", image_sizes=(16,), timesteps=20, text_embed_dim=8,
            cond_drop_prob=0.1,
        )  # fmt: skip

    def forward(self, images: torch.Tensor, text: torch.Tensor, mask: torch.Tensor) -> Any:
        loss = self.model(images, text_embeds=text, text_masks=mask)
        return loss, self.model.sample(text_embeds=text, text_masks=mask, cond_scale=2.0)


class Blocked(nn.Module):
    """Blocks of an image that a model predicts."""

    def __init__(self) -> None:
        super().__init__()
        from torch_world.masks.multiblock import MultiBlock3DMask, MultiBlockMask

        self.network = nn.Linear(4, 4)
        self.masks = [
            MultiBlockMask((6, 6), num_pred=2, min_keep=2),
            MultiBlock3DMask((2, 6, 6), num_blocks=2),
        ]

    def forward(self, patches: torch.Tensor) -> Any:
        outputs = []
        for mask in self.masks:
            kept, predicted = mask(len(patches))
            features = self.network(patches)
            outputs += [
                features.gather(1, chosen[..., None].expand(-1, -1, 4).to(features.device))
                for chosen in (*kept, *predicted)
            ]
        return outputs


class Predicted(nn.Module):
    """A transformer that predicts parts of images that it does not see."""

    def __init__(self) -> None:
        super().__init__()
        from simulusion.models.vit import VisionTransformer, VisionTransformerPredictor

        self.encoder = VisionTransformer([8], 2, 3, 8, 8, 1, 1, 2)
        self.predictor = VisionTransformerPredictor(16, 8, 8, 1, 2)

    def forward(self, images: torch.Tensor, seen: torch.Tensor, hidden: torch.Tensor) -> Any:
        return self.predictor(self.encoder(images, [seen]), [seen], [hidden])


class Noised(nn.Module):
    """Molecules whose atoms and bonds are noised by a chain of matrices."""

    def __init__(self) -> None:
        super().__init__()
        from torch_molecule.generator.digress import diffusion, utils

        self.network, self.diffusion, self.parts = nn.Linear(4, 3), diffusion, utils
        self.schedule = diffusion.NoiseScheduleDiscrete(5)
        self.transition = diffusion.MarginalTransition(
            torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.7, 0.3]), 0
        )
        self.sizes = utils.DistributionNodes({2: 1, 3: 2, 4: 1})

    def forward(
        self, atoms: torch.Tensor, edges: torch.Tensor, kinds: torch.Tensor, batch: torch.Tensor
    ) -> Any:
        dense, mask = self.parts.to_dense(self.network(atoms), edges, kinds, batch)
        dense = dense.mask(mask)
        step = torch.randint(1, 5, (2, 1), device=atoms.device)
        advance = self.transition.get_Qt_bar(self.schedule.get_alpha_bar(t_int=step), atoms.device)
        nodes = (dense.X.softmax(-1) @ advance.X).clamp(min=1e-3)
        bonds = torch.full((*mask.shape, mask.shape[1], 2), 0.5, device=atoms.device)
        drawn = self.diffusion.sample_discrete_features(nodes / nodes.sum(-1, keepdim=True), bonds, mask)
        self.diffusion.assert_correctly_masked(dense.X, mask[..., None])
        return drawn, self.sizes.sample_n(2, atoms.device), self.sizes.log_prob(mask.sum(-1))


class Matched(nn.Module):
    """A detector with queries and masks, and its loss."""

    def __init__(self) -> None:
        super().__init__()
        from libreyolo.models.gtr.criterion import GTRCriterion
        from libreyolo.models.gtr.matcher import HungarianMatcher

        weights = {"cost_class": 2, "cost_bbox": 5, "cost_giou": 2}
        self.network = nn.Linear(8, 6)
        self.loss = GTRCriterion(
            HungarianMatcher(weights, True), {"loss_vfl": 1, "loss_bbox": 5, "loss_giou": 2}, ["vfl", "boxes"],
            num_classes=2, reg_max=4,
        )  # fmt: skip

    def layer(self, queries: torch.Tensor) -> dict[str, Any]:
        found = self.network(queries)
        return {"pred_logits": found[..., :2], "pred_boxes": found[..., 2:].sigmoid()}

    def forward(self, queries: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor) -> Any:
        outputs = self.layer(queries) | {
            "aux_outputs": [self.layer(queries * 0.5)], "pre_outputs": self.layer(queries * 0.1),
            "enc_aux_outputs": [self.layer(queries)], "enc_meta": {"class_agnostic": False}, "up": None,
            "reg_scale": None,
        }  # fmt: skip
        return self.loss(outputs, [{"labels": labels, "boxes": boxes}] * len(queries))


class Phoned(nn.Module):
    """A codec's quantizer, which rounds to levels."""

    def __init__(self) -> None:
        super().__init__()
        from stable_codec.fsq import DitheredFSQ

        self.network, self.quantizer = nn.Linear(6, 2), DitheredFSQ([5, 4])

    def forward(self, sounds: torch.Tensor) -> Any:
        return self.quantizer(self.network(sounds))


class Retrieved(nn.Module):
    """Documents that are compared where both have activations."""

    def __init__(self) -> None:
        super().__init__()
        from neural_cherche.utils.dense_scores import dense_scores, pairs_dense_scores

        self.network, self.scores, self.pairs = nn.Linear(4, 4), dense_scores, pairs_dense_scores

    def forward(
        self, queries: torch.Tensor, documents: torch.Tensor, tokens: torch.Tensor, others: torch.Tensor
    ) -> Any:
        anchor, positive = self.network(queries), self.network(documents)
        negative = self.network(documents * 0.5)
        scores = self.scores(
            tokens, others, others.flip(0), anchor, positive, negative, lambda a, b: (a * b).sum()
        )
        return scores, self.pairs(tokens, others, anchor, positive)


class Framed(nn.Module):
    """Molecules turned to frames of their own."""

    def __init__(self) -> None:
        super().__init__()
        from faenet.frame_averaging import frame_averaging_2D, frame_averaging_3D

        self.network, self.average = nn.Linear(3, 3), (frame_averaging_2D, frame_averaging_3D)

    def forward(self, places: torch.Tensor) -> Any:
        kinds = ("stochastic", "all", "se3-stochastic", "det")
        return [average(self.network(places), fa_method=kind) for average in self.average for kind in kinds]


class Flowing(nn.Module):
    """The costs of a model of optical flow."""

    def __init__(self) -> None:
        super().__init__()
        from ezflow.similarity.learnable_cost import LearnableMatchingCost, MatryoshkaDilatedCostVolume

        self.network = nn.Conv2d(3, 4, 1)
        self.costs = nn.ModuleList(
            [
                LearnableMatchingCost(1, 1, (8, 12, 8, 8, 8, 1)),
                MatryoshkaDilatedCostVolume(1, 2, dilations=[1, 2]),
            ]
        )

    def forward(self, before: torch.Tensor, after: torch.Tensor) -> Any:
        return [cost(self.network(before), self.network(after)) for cost in self.costs]


class Angular(nn.Module):
    """The loss of triples of voices."""

    def __init__(self) -> None:
        super().__init__()
        from mvector.loss.tripletangularmarginloss import TripletAngularMarginLoss

        self.network, self.loss = nn.Linear(8, 4), TripletAngularMarginLoss()

    def forward(self, sounds: torch.Tensor, labels: torch.Tensor) -> Any:
        features = self.network(sounds)
        return self.loss({"features": features, "logits": features}, labels)


class Experts(nn.Module):
    """A block of experts of a model of music."""

    def __init__(self) -> None:
        super().__init__()
        from yourmt3.model.ff_layer import get_ff_layer

        config = types.SimpleNamespace(
            ff_layer_type="moe", moe_num_experts=3, moe_topk=2, hidden_act="gelu", ff_widening_factor=2,
            dropout_rate=0.0, layer_norm_type="layer_norm", layer_norm_eps=1e-5, ff_layer_dropout=0.0,
        )  # fmt: skip
        made = get_ff_layer(config, 8, 2)
        self.model = made[0] if isinstance(made, tuple) else made

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(x)
