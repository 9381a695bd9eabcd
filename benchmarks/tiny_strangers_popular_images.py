"""What calls models of images, series, tables and molecules of `benchmarks.tiny_strangers_ninth`, as their READMEs do.

The linter reads this file with them.
"""

from typing import Any

import torch
from torch import nn


class Informed(nn.Module):
    """A forecaster with attention to the likeliest queries."""

    def __init__(self) -> None:
        super().__init__()
        from flood_forecast.transformer_xl.informer import Informer

        self.model = Informer(
            3, 3, 1, 8, 4, 4, factor=1, d_model=16, n_heads=2, e_layers=2, d_layers=1, d_ff=16,
            device=torch.device("cpu"),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, marks: torch.Tensor, y: torch.Tensor, y_marks: torch.Tensor) -> Any:
        return self.model(x, marks, y, y_marks)


class Samplers(nn.Module):
    """A denoiser under the samplers of its package."""

    def __init__(self) -> None:
        super().__init__()
        from k_diffusion.layers import Denoiser
        from k_diffusion.models import ImageDenoiserModelV1

        net = ImageDenoiserModelV1(3, 16, [1, 1], [16, 16], [False, True])
        self.model = Denoiser(net, sigma_data=0.5)

    def forward(self, images: torch.Tensor, sigmas: torch.Tensor) -> Any:
        from k_diffusion import sampling

        loss = self.model.loss(images, torch.randn_like(images), sigmas[:1].expand(len(images)))
        return (
            loss,
            sampling.sample_euler(self.model, images, sigmas, disable=True),
            sampling.sample_heun(self.model, images, sigmas, disable=True),
            sampling.sample_lms(self.model, images, sigmas, disable=True),
            sampling.sample_dpmpp_2m(self.model, images, sigmas, disable=True),
            sampling.sample_dpm_adaptive(self.model, images, 0.1, 2.0, disable=True),
        )


class Boxes(nn.Module):
    """A detector with anchors: its loss, and what is left of its boxes."""

    def __init__(self) -> None:
        super().__init__()
        from yolov5.models.yolo import DetectionModel
        from yolov5.utils.loss import ComputeLoss

        config = {
            "nc": 3, "depth_multiple": 1.0, "width_multiple": 1.0, "anchors": [[4, 5, 8, 10, 13, 16]],
            "backbone": [[-1, 1, "Conv", [8, 3, 2]], [-1, 1, "C3", [8]], [-1, 1, "Conv", [16, 3, 2]]],
            "head": [[-1, 1, "SPPF", [16, 5]], [[3], 1, "Detect", ["nc", "anchors"]]],
        }  # fmt: skip
        self.model = DetectionModel(config)
        self.model.hyp = {"cls_pw": 1.0, "obj_pw": 1.0, "label_smoothing": 0.0, "fl_gamma": 0.0, "box": 0.05,
                          "obj": 1.0, "cls": 0.5, "anchor_t": 4.0}  # fmt: skip
        self.loss = ComputeLoss(self.model)

    def forward(self, images: torch.Tensor, targets: torch.Tensor) -> Any:
        from yolov5.utils.general import non_max_suppression

        self.model.train()
        loss = self.loss(self.model(images), targets)
        self.model.eval()
        return loss, non_max_suppression(self.model(images), conf_thres=0.1)


class Detections(nn.Module):
    """A detector with a transformer: its loss, and its boxes."""

    def __init__(self) -> None:
        super().__init__()
        from rfdetr.config import RFDETRNanoConfig, TrainConfig
        from rfdetr.models.lwdetr import build_criterion_from_config, build_model_from_config

        config = RFDETRNanoConfig(
            pretrain_weights=None, device="cpu", num_classes=3, resolution=64, positional_encoding_size=4,
            dec_layers=1, hidden_dim=16, sa_nheads=2, ca_nheads=2, num_queries=8, num_select=8, group_detr=1,
        )  # fmt: skip
        training = TrainConfig(dataset_dir=".")
        self.model = build_model_from_config(config)
        self.criterion, self.postprocess = build_criterion_from_config(config, training)

    def forward(
        self, images: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor, sizes: torch.Tensor
    ) -> Any:
        from rfdetr.utilities.tensors import nested_tensor_from_tensor_list

        outputs = self.model(nested_tensor_from_tensor_list(list(images)))
        targets = [{"boxes": box, "labels": label} for box, label in zip(boxes, labels, strict=True)]
        return self.criterion(outputs, targets), self.postprocess(outputs, sizes)


class Masks(nn.Module):
    """A segmenter of videos: two frames of which the second remembers the first."""

    def __init__(self) -> None:
        super().__init__()
        from sam2.modeling.backbones.hieradet import Hiera
        from sam2.modeling.backbones.image_encoder import FpnNeck, ImageEncoder
        from sam2.modeling.memory_attention import MemoryAttention, MemoryAttentionLayer
        from sam2.modeling.memory_encoder import CXBlock, Fuser, MaskDownSampler, MemoryEncoder
        from sam2.modeling.position_encoding import PositionEmbeddingSine
        from sam2.modeling.sam.transformer import RoPEAttention
        from sam2.modeling.sam2_base import SAM2Base

        trunk = Hiera(embed_dim=16, num_heads=1, stages=(1, 2, 2, 1), global_att_blocks=(4,),
                      window_pos_embed_bkg_spatial_size=(7, 7))  # fmt: skip
        neck = FpnNeck(PositionEmbeddingSine(32), 32, [128, 64, 32, 16], fpn_top_down_levels=[2, 3])
        attention: dict[str, Any] = {
            "embedding_dim": 32,
            "num_heads": 1,
            "downsample_rate": 1,
            "feat_sizes": (4, 4),
        }
        layer = MemoryAttentionLayer(
            "relu", RoPEAttention(rope_k_repeat=True, kv_in_dim=8, **attention), 32, 64, 0.1, False, True, False,
            RoPEAttention(**attention),
        )  # fmt: skip
        memory = MemoryEncoder(
            8, MaskDownSampler(embed_dim=32), Fuser(CXBlock(32), 1), PositionEmbeddingSine(8), 32
        )
        self.model = SAM2Base(
            ImageEncoder(trunk, neck, scalp=1), MemoryAttention(32, True, layer, 1), memory, num_maskmem=2,
            image_size=64, use_high_res_features_in_sam=True, multimask_output_in_sam=True,
            use_obj_ptrs_in_encoder=True, pred_obj_scores=True, multimask_output_for_tracking=True,
            use_multimask_token_for_obj_ptr=True, iou_prediction_use_sigmoid=True, multimask_max_pt_num=1,
            directly_add_no_mem_embed=True, use_mlp_for_obj_ptr_proj=True, fixed_no_obj_ptr=True,
            add_tpos_enc_to_obj_ptrs=True, proj_tpos_enc_in_obj_ptrs=True,
        )  # fmt: skip

    def forward(self, frames: torch.Tensor, points: torch.Tensor, labels: torch.Tensor) -> Any:
        remembered: dict[str, Any] = {"cond_frame_outputs": {}, "non_cond_frame_outputs": {}}
        outputs = []
        for index, frame in enumerate(frames.unbind()):
            _, features, places, sizes = self.model._prepare_backbone_features(
                self.model.forward_image(frame)
            )
            first = index == 0
            prompt = {"point_coords": points, "point_labels": labels} if first else None
            output = self.model.track_step(
                index, first, features, places, sizes, prompt, None, remembered, num_frames=len(frames)
            )
            remembered["cond_frame_outputs" if first else "non_cond_frame_outputs"][index] = output
            outputs.append(output["pred_masks_high_res"])
        return outputs


class Crystals(nn.Module):
    """Energies of crystals from their graphs."""

    def __init__(self) -> None:
        super().__init__()
        from chgnet.model import CHGNet

        self.model = CHGNet(
            atom_fea_dim=8, bond_fea_dim=8, angle_fea_dim=8, composition_model=None, num_radial=5, num_angular=5,
            n_conv=2, atom_conv_hidden_dim=8, bond_conv_hidden_dim=8, mlp_hidden_dims=(8,), is_intensive=True,
        )  # fmt: skip

    def forward(
        self, numbers: torch.Tensor, places: torch.Tensor, edges: torch.Tensor, bonds: torch.Tensor
    ) -> Any:
        from chgnet.graph.crystalgraph import CrystalGraph

        count = len(edges)
        graph = CrystalGraph(
            atomic_number=numbers, atom_frac_coord=places, atom_graph=edges, atom_graph_cutoff=6.0,
            neighbor_image=torch.zeros(count, 3), directed2undirected=torch.arange(count) // 2,
            undirected2directed=torch.arange(0, count, 2), bond_graph=bonds, bond_graph_cutoff=3.0,
            lattice=3 * torch.eye(3),
        )  # fmt: skip
        return self.model([graph, graph], task="e")


class Forecasts(nn.Module):
    """A forecaster of many series, trained and sampled."""

    def __init__(self) -> None:
        super().__init__()
        from toto.model.toto import Toto

        self.model = Toto(
            patch_size=4, stride=4, embed_dim=16, num_layers=2, num_heads=2, mlp_hidden_dim=16, dropout=0.1,
            spacewise_every_n_layers=2, scaler_cls="<class 'model.scaler.CausalPatchStdMeanScaler'>",
            output_distribution_classes=["<class 'model.distribution.MixtureOfStudentTsOutput'>"],
            output_distribution_kwargs={"k_components": 2}, use_memory_efficient_attention=False,
        ).model  # fmt: skip

    def forward(self, series: torch.Tensor, mask: torch.Tensor, ids: torch.Tensor, stamps: torch.Tensor,
                steps: torch.Tensor) -> Any:  # fmt: skip
        from toto.data.util.dataset import MaskedTimeseries
        from toto.inference.forecaster import TotoForecaster

        inputs = MaskedTimeseries(series, mask, ids, stamps, steps)
        forecaster = TotoForecaster(self.model)
        return (
            self.model(series, mask, ids),
            forecaster.forecast(inputs, prediction_length=4, num_samples=None, use_kv_cache=True),
            forecaster.forecast(inputs, prediction_length=4, num_samples=2, samples_per_batch=2),
        )


class AnyVariate(nn.Module):
    """A forecaster of any number of variates, sampled."""

    def __init__(self) -> None:
        super().__init__()
        from uni2ts.distribution import NormalOutput
        from uni2ts.model.moirai import MoiraiForecast, MoiraiModule

        module = MoiraiModule(NormalOutput(), 64, 1, (4, 8), 32, 0.1, 0.1)
        self.model = MoiraiForecast(4, 1, 0, 0, 16, module=module, patch_size=4, num_samples=2)

    def forward(self, past: torch.Tensor, seen: torch.Tensor, padded: torch.Tensor) -> Any:
        return self.model(past, seen, padded)


class Flows(nn.Module):
    """Optical flow by recurrent refinement."""

    def __init__(self, name: str) -> None:
        super().__init__()
        import ptlflow

        self.model = ptlflow.get_model(name)
        self.model.iters = 2

    def forward(self, images: torch.Tensor) -> Any:
        return self.model({"images": images})


class Compressed(nn.Module):
    """Images, compressed and back."""

    def __init__(self) -> None:
        super().__init__()
        from compressai.models import JointAutoregressiveHierarchicalPriors, ScaleHyperprior

        self.scales = ScaleHyperprior(8, 8)
        self.joint = JointAutoregressiveHierarchicalPriors(8, 8)

    def forward(self, images: torch.Tensor) -> Any:
        return self.scales(images), self.scales.aux_loss(), self.joint(images)


class Segmented(nn.Module):
    """A segmenter of images from a config: loss and prediction."""

    def __init__(self) -> None:
        super().__init__()
        from mmengine.config import ConfigDict
        from mmseg.models import build_segmentor
        from mmseg.utils import register_all_modules

        register_all_modules()
        norm = {"type": "BN"}
        self.model = build_segmentor(
            ConfigDict({
                "type": "EncoderDecoder",
                "backbone": {"type": "UNet", "base_channels": 4, "num_stages": 2, "strides": (1, 1),
                             "enc_num_convs": (1, 1), "dec_num_convs": (1,), "downsamples": (True,),
                             "enc_dilations": (1, 1), "dec_dilations": (1,), "norm_cfg": norm},
                "decode_head": {"type": "FCNHead", "in_channels": 4, "channels": 4, "in_index": 1, "num_classes": 3,
                                "norm_cfg": norm, "num_convs": 1,
                                "sampler": {"type": "OHEMPixelSampler", "thresh": 0.7, "min_kept": 10},
                                "loss_decode": {"type": "CrossEntropyLoss", "avg_non_ignore": True}},
                "train_cfg": {}, "test_cfg": {"mode": "slide", "crop_size": (16, 16), "stride": (8, 8)},
            })
        )  # fmt: skip

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        from mmengine.structures import PixelData
        from mmseg.structures import SegDataSample

        samples = [SegDataSample(gt_sem_seg=PixelData(data=label)) for label in labels]
        for sample in samples:
            sample.set_metainfo({"img_shape": (24, 24), "ori_shape": (24, 24), "pad_shape": (24, 24)})
        return self.model(images, samples, mode="loss"), self.model(images, samples, mode="predict")


class Tables(nn.Module):
    """Models of tables with embedded columns, apart and together."""

    def __init__(self) -> None:
        super().__init__()
        from pytorch_widedeep.models import FTTransformer, TabTransformer, Wide, WideDeep

        columns = {"a": 0, "b": 1, "c": 2}
        options: dict[str, Any] = {
            "column_idx": columns, "cat_embed_input": [("a", 4), ("b", 3)], "continuous_cols": ["c"], "input_dim": 8,
            "n_heads": 2, "n_blocks": 1,
        }  # fmt: skip
        self.first = FTTransformer(kv_compression_factor=1.0, **options)
        self.model = WideDeep(wide=Wide(9, 1), deeptabular=TabTransformer(**options), pred_dim=1)

    def forward(self, wide: torch.Tensor, table: torch.Tensor) -> Any:
        return self.first(table), self.model({"wide": wide, "deeptabular": table})


class Clap(nn.Module):
    """Sound and text together, and their loss."""

    def __init__(self) -> None:
        super().__init__()
        from laion_clap.clap_module.loss import ClipLoss

        self.loss = ClipLoss(mlp_loss=True)

    def forward(self, sound: torch.Tensor, text: torch.Tensor, scale: torch.Tensor) -> Any:
        return self.loss(sound, text, scale, scale, sound, text)
