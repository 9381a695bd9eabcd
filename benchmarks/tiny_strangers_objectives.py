"""What trains or measures models of `benchmarks.tiny_strangers_twelfth`, as their READMEs do.

The linter reads this file with them.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn


class Embedded(nn.Module):
    """Losses of embeddings by their instances."""

    def __init__(self) -> None:
        super().__init__()
        from torch_em.loss.affinity_side_loss import AffinitySideLoss
        from torch_em.loss.contrastive import ContrastiveLoss
        from torch_em.loss.distance_based import DiceBasedDistanceLoss

        self.network = nn.Conv2d(1, 4, 3, padding=1)
        self.contrastive = ContrastiveLoss(0.5, 1.5, impl="expand")
        self.sides = AffinitySideLoss([(-3, 3), (-3, 3)], 4, 1.0)
        self.distances = DiceBasedDistanceLoss(mask_distances_in_bg=True)

    def forward(self, images: torch.Tensor, labels: torch.Tensor, distances: torch.Tensor) -> Any:
        embeddings = self.network(images)
        near = self.contrastive(embeddings, labels)
        return near + self.sides(embeddings, labels), self.distances(embeddings[:, :3].sigmoid(), distances)


class Remembered(nn.Module):
    """A memory of what is noise."""

    def __init__(self) -> None:
        super().__init__()
        from easydict import EasyDict
        from vissl.losses.nce_loss import NCEAverage, NCECriterion

        memory = SimpleNamespace(
            memory_size=10, embedding_dim=8, momentum=0.5, norm_init=True, update_mem_on_forward=True
        )
        self.average = NCEAverage(memory, EasyDict(num_negatives=4, type="random"))
        self.criterion = NCECriterion(10)

    def forward(self, embedding: torch.Tensor, index: torch.Tensor) -> Any:
        return self.criterion(self.average(embedding, index), index)


class Tabled(nn.Module):
    """Models of tables, alone and with neighbours."""

    def __init__(self) -> None:
        super().__init__()
        from pytabkit.models.nn_models.tabm import Model

        backbone = {"type": "MLP", "n_blocks": 1, "d_block": 8, "dropout": 0.0}
        self.model = Model(
            n_num_features=3,
            cat_cardinalities=[3, 4],
            n_classes=2,
            backbone=backbone,
            bins=None,
            arch_type="tabm",
            k=2,
        )

    def forward(self, numbers: torch.Tensor, kinds: torch.Tensor) -> Any:
        return self.model(numbers, kinds)


class Turned(nn.Module):
    """A detector of rotated boxes without anchors: what it finds, and its loss."""

    def __init__(self) -> None:
        super().__init__()
        from oriented_det.models.rotated_fcos import RotatedFCOS

        self.model = RotatedFCOS(
            3, "resnet18", pretrained_backbone=False, stacked_convs=1, score_threshold=0.0, nms_pre=20
        )

    def forward(self, image: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor) -> Any:
        from oriented_det.models.rotated_fcos import compute_rotated_fcos_loss, generate_fpn_points
        from oriented_det.models.utils import extract_backbone_features

        found = self.model([image])
        features = extract_backbone_features(
            self.model.backbone, [image], use_checkpoint=False, training=False, include_pool_level=False
        )
        strides = [image.shape[-1] / feature.shape[-1] for feature in features]
        scores, offsets, angles, centers = self.model.head(features, strides=strides)
        sizes = [(feature.shape[2], feature.shape[3]) for feature in features]
        points = generate_fpn_points(sizes, strides, dtype=image.dtype, device=image.device)
        loss = compute_rotated_fcos_loss(
            scores, offsets, angles, centers, points, strides, [boxes], [labels], None, 3,
            self.model.regress_ranges, True, 1.5, True, 0.25, 2.0, 1.0, 1.0, bbox_coder=self.model.bbox_coder,
        )  # fmt: skip
        return found, loss


class Proposed(nn.Module):
    """Anchors that are rotated: what is matched with them, and the losses."""

    def __init__(self) -> None:
        super().__init__()
        from oriented_det.models.oriented_roi import OrientedROIHead
        from oriented_det.models.oriented_rpn import OrientedRPNHead

        self.head = OrientedRPNHead(4, 2, cls_out_channels=1, reg_out_channels=4)
        self.boxes = OrientedROIHead(4 * 49, 3)

    def forward(self, feature: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor) -> Any:
        from oriented_det.models.oriented_roi import compute_oriented_roi_loss, oriented_roi_align
        from oriented_det.models.oriented_rpn import (
            compute_oriented_rpn_loss,
            generate_oriented_anchors,
        )

        anchors = generate_oriented_anchors((64, 64), [(8, 8)], [16.0], [0.5, 1.0], [0.0], [8])
        objects, offsets = self.head([feature])
        sizes = [(64, 64)]
        loss = compute_oriented_rpn_loss(objects, offsets, anchors, [boxes], sizes)
        proposals = anchors[0][::8]
        parts = oriented_roi_align([feature], proposals, sizes)
        classes, regression = self.boxes(parts.flatten(1))
        return loss, compute_oriented_roi_loss(classes, regression, proposals, boxes, labels)


class Matched(nn.Module):
    """Predictions of a detector that are assigned to boxes by their costs, and the loss."""

    def __init__(self) -> None:
        super().__init__()
        from cjm_yolox_pytorch.inference import YOLOXInferenceWrapper
        from cjm_yolox_pytorch.loss import YOLOXLoss
        from cjm_yolox_pytorch.model import build_model

        self.model = build_model("yolox_tiny", 3, pretrained=False)
        self.loss = YOLOXLoss(3, use_l1=True)
        self.boxes = YOLOXInferenceWrapper(self.model)

    def forward(self, images: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor) -> Any:
        scores, offsets, objects = self.model(images)
        return self.loss(scores, offsets, objects, [boxes], [labels]), self.boxes(images)


class Anchored(nn.Module):
    """A layer of a detector with anchors: its loss."""

    def __init__(self) -> None:
        super().__init__()
        from holocron.models.detection.yolov4 import YoloLayer

        self.head = nn.Conv2d(4, 24, 1)
        self.layer = YoloLayer(torch.tensor([[0.2, 0.3], [0.4, 0.4], [0.6, 0.5]]), 3)

    def forward(self, features: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor) -> Any:
        output, objects, scores = self.layer._format_outputs(self.head(features))
        return self.layer._compute_losses(output, objects, scores, [{"boxes": boxes, "labels": labels}])


class Squashed(nn.Module):
    """A policy whose actions have bounds, with a model of what it leads to."""

    def __init__(self) -> None:
        super().__init__()
        from offlinerl.utils.net.common import Net
        from offlinerl.utils.net.tanhpolicy import TanhGaussianPolicy

        body = Net(layer_num=1, state_shape=11, hidden_layer_size=8)
        self.policy = TanhGaussianPolicy(
            preprocess_net=body, action_shape=3, hidden_layer_size=8, conditioned_sigma=True
        )

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> Any:
        return self.policy(observations), self.policy.log_prob(observations, actions)


class Separated(nn.Module):
    """What is lost between a source and its estimate."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(16, 16)

    def forward(self, sounds: torch.Tensor, targets: torch.Tensor) -> Any:
        from padertorch.ops.losses.regression import (
            log_mse_loss,
            sdr_loss,
            si_sdr_loss,
            source_aggregated_sdr_loss,
        )

        sounds = self.network(sounds)
        losses = sdr_loss(sounds, targets, soft_sdr_max=20) + si_sdr_loss(sounds, targets)
        losses = losses + source_aggregated_sdr_loss(sounds, targets)
        return losses + log_mse_loss(sounds, targets, soft_sdr_max=20)


class Pillared(nn.Module):
    """Boxes in three dimensions: which anchors they have, how far they overlap, and which are kept."""

    def __init__(self) -> None:
        super().__init__()
        from torch_pointcloud.models.pointpillars import PillarFeatureNet

        self.pillars = PillarFeatureNet(4, [8], [0.5, 0.5, 4.0], [0.0, -4.0, -3.0, 8.0, 4.0, 1.0])
        self.scores, self.offsets = nn.Conv2d(8, 2, 1), nn.Conv2d(8, 14, 1)

    def forward(
        self,
        voxels: torch.Tensor,
        counts: torch.Tensor,
        places: torch.Tensor,
        boxes: torch.Tensor,
        labels: torch.Tensor,
    ) -> Any:
        from torch_pointcloud.models.pointpillars import scatter_to_bev
        from torch_pointcloud.ops.anchors import assign_anchor_targets, generate_anchors
        from torch_pointcloud.ops.box3d import boxes_iou3d, decode_box_residuals, nms3d, points_in_boxes

        span = [0.0, -4.0, -3.0, 8.0, 4.0, 1.0]
        features = scatter_to_bev(self.pillars(voxels, counts, places), places, 1, (16, 16, 1))
        anchors = generate_anchors(span, (16, 16), [[1.6, 3.9, 1.5]], [0.0, 1.57], [-1.7]).reshape(-1, 7)
        targets = assign_anchor_targets(
            anchors, boxes, labels, matched_threshold=0.4, unmatched_threshold=0.2
        )
        offsets = self.offsets(features).permute(0, 2, 3, 1).reshape(-1, 7)
        found = decode_box_residuals(offsets * 0.1, anchors)[:20]
        scores = self.scores(features).flatten()[:20].sigmoid()
        kept = nms3d(found, scores, 0.3, rotated=True, max_keep=5)
        inside = points_in_boxes(voxels[:, 0, :3], found[kept])
        return targets, found[kept], boxes_iou3d(found, boxes), inside


class Faced(nn.Module):
    """A detector of faces by the fields that its neurons see, and its loss."""

    def __init__(self) -> None:
        super().__init__()
        from fastface.arch.lffd.module import LFFD

        self.model = LFFD(LFFD.__CONFIGS__["slim"])

    def forward(self, images: torch.Tensor, boxes: torch.Tensor) -> Any:
        logits = self.model(images)
        targets = [{"target_boxes": boxes}]
        return self.model.compute_loss(logits, targets), self.model.logits_to_preds(logits)


class Pointed(nn.Module):
    """A head that points to tokens, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        from pie_modules.models.components.pointer_head import PointerHead

        self.head = PointerHead(
            [0, 2, 1, 10, 11], 0, 1, 2, nn.Embedding(20, 8), embedding_weight_mapping={10: [3, 4]},
            use_encoder_mlp=True, decoder_position_id_mode="pattern_with_increment",
            decoder_position_id_pattern=[0, 0, 1],
        )  # fmt: skip

    def forward(
        self, states: torch.Tensor, words: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor
    ) -> Any:
        inputs = self.head.prepare_decoder_inputs(labels, words)
        constraints = torch.where(labels.unsqueeze(-1) > 2, 1, -1).expand(-1, -1, 5 + words.size(1))
        embedded = self.head.embeddings(inputs["input_ids"])
        return inputs, self.head(embedded, words, states, mask, labels, torch.ones_like(labels), constraints)
