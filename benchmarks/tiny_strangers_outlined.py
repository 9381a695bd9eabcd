"""What trains detectors and measures shapes with models of `benchmarks.tiny_strangers_thirteenth`, as their READMEs do.

The linter reads this file with them.
"""

from typing import Any

import torch
from torch import nn


class Regioned(nn.Module):
    """A detector by regions, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        from lightnet.network.loss import RegionLoss
        from lightnet.util import Anchors

        self.network = nn.Conv2d(3, 14, 3, padding=1)
        self.loss = RegionLoss(2, Anchors([[1, 1], [2, 3]]), 8, coord_prefill=4)

    def forward(self, images: torch.Tensor, targets: torch.Tensor) -> Any:
        output = nn.functional.avg_pool2d(self.network(images), 8)
        return self.loss(output, targets), self.loss(output, targets, seen=9)


class Assigned(nn.Module):
    """A detector with an assigner and the losses of both branches."""

    def __init__(self) -> None:
        super().__init__()
        from lucid_yolo.assign.tal import TaskAlignedAssigner
        from lucid_yolo.losses.detection_loss import DetectionBranchLoss
        from lucid_yolo.losses.oriented_loss import oriented_branch_terms

        self.network = nn.Conv2d(3, 6, 1)
        self.assigner = TaskAlignedAssigner(3)
        self.loss, self.turned = DetectionBranchLoss(), oriented_branch_terms

    def forward(
        self, images: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor
    ) -> Any:
        side = images.shape[-1]
        steps = torch.arange(side, device=images.device) * 8.0 + 4
        points = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), -1).flatten(0, 1)
        found = self.network(images).flatten(2).transpose(1, 2)
        logits, raw = found[..., :2], found[..., 2:].exp()
        strides = torch.full((len(points),), 8.0, device=images.device)
        centres = torch.cat([points, points], -1)
        signs = torch.tensor([-8.0, -8, 8, 8], device=images.device)
        predicted = centres + signs * raw
        assigned = self.assigner(logits.sigmoid(), predicted, points, boxes, labels, mask)
        loss = self.loss(logits, predicted, assigned, strides)
        middle, extent = (
            (predicted[..., :2] + predicted[..., 2:]) / 2,
            predicted[..., 2:] - predicted[..., :2],
        )
        angle = logits[..., :1] * 0.1
        turned = torch.cat([middle, extent, angle], -1)
        truth = torch.cat([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2] + 1], -1)
        truth = torch.cat([truth, torch.zeros_like(truth[..., :1])], -1)
        oriented = self.turned(turned, angle, truth, assigned, strides)
        return loss, oriented


class Queried(nn.Module):
    """A detector with queries, matched with the boxes."""

    def __init__(self) -> None:
        super().__init__()
        from aquamarine.modules.losses import HungarianLoss

        self.network = nn.Linear(8, 7)
        self.loss = HungarianLoss(2, self.match, 0.1)

    def match(self, outputs: Any, targets: Any) -> Any:
        """The first queries for the boxes."""
        count = torch.arange(len(targets[0]["labels"]), device=outputs["labels"].device)
        return [(count, count.flip(0))] * len(targets)

    def forward(self, queries: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor) -> Any:
        found = self.network(queries)
        outputs = {"labels": found[..., :3], "bboxes": found[..., 3:].sigmoid()}
        return self.loss(outputs, [{"labels": labels, "bboxes": boxes}] * len(queries))


class Distilled(nn.Module):
    """The loss of a detector whose last layer teaches the others."""

    def __init__(self) -> None:
        super().__init__()
        from easydetect.utils.loss import DetectionLoss

        self.network = nn.Linear(8, 6)
        self.corners = nn.Linear(8, 4 * 5)
        self.loss = DetectionLoss(2, reg_max=4)
        self.up, self.scale = nn.Parameter(torch.tensor([0.5])), nn.Parameter(torch.tensor([4.0]))

    def layer(self, queries: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.network(queries)
        return {"pred_logits": found[..., :2], "pred_boxes": found[..., 2:].sigmoid()}

    def forward(self, queries: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor) -> Any:
        fine = {
            "pred_corners": self.corners(queries), "ref_points": self.network(queries)[..., 2:].sigmoid(),
            "up": self.up, "reg_scale": self.scale,
        }  # fmt: skip
        last = self.layer(queries) | fine
        taught = self.layer(queries * 0.5) | fine
        taught |= {"teacher_corners": last["pred_corners"] + 0.1, "teacher_logits": last["pred_logits"]}
        outputs = last | {
            "aux_outputs": [taught], "pre_outputs": self.layer(queries * 0.1), "enc_aux_outputs": [self.layer(queries)],
            "enc_meta": {"class_agnostic": False},
        }  # fmt: skip
        return self.loss(outputs, [{"labels": labels, "boxes": boxes}] * len(queries))


class Marked(nn.Module):
    """Landmarks from heat maps."""

    def __init__(self) -> None:
        super().__init__()
        from landmarker.heatmap import decoder

        self.network, self.decoder = nn.Conv2d(1, 2, 3, padding=1), decoder

    def forward(self, images: torch.Tensor) -> Any:
        heat = self.network(images)
        methods = ("argmax", "local_soft_argmax", "weighted_spatial_mean")
        single = [self.decoder.heatmap_to_coord(heat, method=method) for method in methods]
        spread = self.decoder.heatmap_to_coord_cov(heat.softmax(-1))
        return single, spread, self.decoder.heatmap_to_multiple_coord(heat, window=3, threshold=0.1)


class Drifted(nn.Module):
    """A generator that drifts to the data, and the encoder that tells how far it is."""

    def __init__(self) -> None:
        super().__init__()
        from drifting_models import drift_loss
        from drifting_models.drift_field import DriftFieldConfig
        from drifting_models.features.mae import (
            LatentResNetMAE,
            LatentResNetMAEConfig,
            masked_reconstruction_loss,
        )

        self.network, self.losses = nn.Linear(4, 4), drift_loss
        self.config = drift_loss.DriftingLossConfig(DriftFieldConfig())
        self.encoder = LatentResNetMAE(LatentResNetMAEConfig(4, 8, 2, norm_groups=2))
        self.reconstruct = masked_reconstruction_loss

    def forward(self, noise: torch.Tensor, data: torch.Tensor, images: torch.Tensor) -> Any:
        made = self.network(noise)
        loss = self.losses.drifting_stopgrad_loss(made, data, made.detach(), config=self.config)
        rebuilt, mask = self.encoder(images)[:2]
        return loss, self.reconstruct(reconstruction=rebuilt, target=images, mask=mask)


class Overlapped(nn.Module):
    """A segmentation with a loss that ranks errors."""

    def __init__(self) -> None:
        super().__init__()
        from change_detection_pytorch.losses.lovasz import LovaszLoss

        self.network = nn.Conv2d(3, 4, 1)
        self.losses = [
            LovaszLoss("binary", per_image=True, ignore_index=2),
            LovaszLoss("multiclass", ignore_index=2),
        ]

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        output = self.network(images)
        return self.losses[0](output[:, :1], labels), self.losses[1](output[:, 1:].softmax(1), labels)


class Identified(nn.Module):
    """The margins of a model of persons."""

    def __init__(self) -> None:
        super().__init__()
        from fastreid.layers.any_softmax import ArcSoftmax, CircleSoftmax, CosSoftmax

        self.network = nn.Linear(8, 5)
        self.heads = nn.ModuleList(kind(5, 16, 0.2) for kind in (CosSoftmax, ArcSoftmax, CircleSoftmax))

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.network(nn.functional.normalize(features)).tanh()
        return [head(logits.clone(), labels) for head in self.heads]


class Boxed(nn.Module):
    """A detector with anchors, its loss with hard negatives, and the suppression of doubles."""

    def __init__(self) -> None:
        super().__init__()
        from pytorch_ssd.modeling.loss import MultiBoxLoss

        self.classes, self.places = nn.Linear(8, 3), nn.Linear(8, 4)
        self.loss = MultiBoxLoss(3.0)

    def forward(self, features: torch.Tensor, labels: torch.Tensor, places: torch.Tensor) -> Any:
        return self.loss(self.classes(features), self.places(features), labels, places)


class Gridded(nn.Module):
    """A detector's grid, made to boxes."""

    def __init__(self) -> None:
        super().__init__()
        from pyolov3.util import predict_transform, write_results

        self.network = nn.Conv2d(3, 14, 1)
        self.transform, self.write = predict_transform, write_results

    def forward(self, images: torch.Tensor) -> Any:
        found = self.transform(self.network(images), 32, [(8, 8), (12, 16)], 2, CUDA=False)
        return self.write(found, 0.4, 2)


class Pillars(nn.Module):
    """The loss of a detector of points, and boxes that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        from opencood.loss.point_pillar_loss import PointPillarLoss
        from opencood.utils import box_utils

        self.classes, self.places = nn.Conv2d(4, 2, 1), nn.Conv2d(4, 14, 1)
        self.loss, self.boxes = PointPillarLoss({"cls_weight": 1.0, "reg": 2.0}), box_utils

    def forward(
        self, features: torch.Tensor, positives: torch.Tensor, places: torch.Tensor, corners: torch.Tensor
    ) -> Any:
        outputs = {"rm": self.places(features), "psm": self.classes(features)}
        loss = self.loss(outputs, {"targets": places, "pos_equal_one": positives})
        return (
            loss,
            corners[self.boxes.remove_large_pred_bbx(corners)],
            self.boxes.corner_to_standup_box_torch(corners),
        )


class Leveled(nn.Module):
    """A detector of several levels, assigned by soft labels, and poses and centres of its maps."""

    def __init__(self) -> None:
        super().__init__()
        from libreyolo.models.rtmdet.loss import RTMDetLoss
        from libreyolo.postprocess.centernet import decode_centernet
        from libreyolo.postprocess.dekr import decode_poses

        self.network, self.loss = nn.Conv2d(3, 6, 1), RTMDetLoss(2, (8, 16))
        self.centres, self.poses = decode_centernet, decode_poses
        self.heat = nn.Conv2d(3, 3, 1)

    def forward(self, images: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor) -> Any:
        levels = [nn.functional.avg_pool2d(self.network(images), step) for step in (1, 2)]
        scores, distances = [level[:, :2] for level in levels], [level[:, 2:].exp() for level in levels]
        loss = self.loss(scores, distances, [boxes] * len(images), [labels] * len(images))
        heat = self.heat(images)
        return (
            loss,
            self.centres(heat[:, :2].sigmoid(), heat[:, :2], heat[:, 1:], topk=4),
            self.poses(heat[:1], self.network(images)[:1, :4], max_num_people=3),
        )


class Parsed(nn.Module):
    """A scene's parser with a second loss."""

    def __init__(self) -> None:
        super().__init__()
        from mit_semseg.models.models import C1DeepSup, SegmentationModule

        self.model = SegmentationModule(Features(), C1DeepSup(3, 8), nn.NLLLoss(ignore_index=-1), 0.4)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        return self.model({"img_data": images, "seg_label": labels})


class Features(nn.Module):
    """Two maps of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 1)

    def forward(self, images: torch.Tensor, return_feature_maps: bool = False) -> Any:
        found = self.first(images)
        return [found, self.last(found)]


class Driven(nn.Module):
    """Losses of a model of what is around a car."""

    def __init__(self) -> None:
        super().__init__()
        from torchdrive.losses import SSIM, generalized_box_iou, smooth_loss, tvl1_loss

        self.network, self.likeness = nn.Conv2d(3, 3, 1), SSIM()
        self.losses, self.boxes = (smooth_loss, tvl1_loss), generalized_box_iou

    def forward(self, images: torch.Tensor, found: torch.Tensor, boxes: torch.Tensor) -> Any:
        depth = self.network(images)[:, :1].sigmoid()
        return (
            self.losses[0](depth, images),
            self.likeness(self.network(images), images),
            self.boxes(found, boxes),
        )


class Spread(nn.Module):
    """Losses of landmarks that know how sure they are."""

    def __init__(self) -> None:
        super().__init__()
        from landmarker.losses.losses import (
            EuclideanDistanceVarianceReg,
            MultivariateGaussianNLLLoss,
            WingLoss,
        )

        self.network = nn.Linear(4, 2)
        self.losses = [EuclideanDistanceVarianceReg(), MultivariateGaussianNLLLoss()]
        self.plain = [WingLoss(spatial_dims=3)]

    def forward(self, features: torch.Tensor, places: torch.Tensor) -> Any:
        found = self.network(features)
        spread = torch.eye(2, device=found.device).expand(*found.shape, 2) * 0.5
        return [loss(found, spread, places) for loss in self.losses], [
            loss(found, places) for loss in self.plain
        ]
