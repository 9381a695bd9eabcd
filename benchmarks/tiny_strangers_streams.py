"""What calls models of `benchmarks.tiny_strangers_eighth` that generate step by step, as their READMEs do.

The linter reads this file with them.
"""

from typing import Any

import torch
from torch import nn


class Dialogue(nn.Module):
    """A model of several streams of codes."""

    def __init__(self) -> None:
        super().__init__()
        from moshi.models.lm import LMModel

        self.model = LMModel(
            delays=[0, 0, 1, 0, 1], n_q=4, dep_q=2, card=16, text_card=20, dim=16, num_heads=2, num_layers=1,
            depformer_dim=16, depformer_num_heads=2, depformer_num_layers=1, causal=True, context=8,
        )  # fmt: skip

    def forward(self, codes: torch.Tensor) -> Any:
        return self.model(codes)


class Gemma(nn.Module):
    """A language model with local and global attention, and its loop."""

    def __init__(self) -> None:
        super().__init__()
        from gemma4_pt_claude.config import Gemma4Config, TextConfig
        from gemma4_pt_claude.model import Gemma4Model

        text = TextConfig(
            vocab_size=50, embed_dim=16, hidden_dim=32, num_heads=2, head_dim=8, num_kv_heads=1, num_layers=2,
            sliding_window_size=4,
        )  # fmt: skip
        self.model = Gemma4Model(Gemma4Config(text=text))

    def forward(self, ids: torch.Tensor) -> Any:
        from gemma4_pt_claude.generate import generate

        return self.model(ids), generate(
            self.model, ids, max_new_tokens=3, top_k=5, top_p=0.9, stop_tokens={3}
        )


class Stacks(nn.Module):
    """A layer with stacks."""

    def __init__(self) -> None:
        super().__init__()
        from stack_attention.stack_trans_layer import StackTransLayer

        self.model = StackTransLayer(16, num_stacks=2, dim_stack=8, stack_size=4)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.model(tokens), self.model(tokens, recurrent=True)


class Vocoder(nn.Module):
    """A vocoder that predicts its own pitch."""

    def __init__(self) -> None:
        super().__init__()
        from chatterbox.models.s3gen.f0_predictor import ConvRNNF0Predictor
        from chatterbox.models.s3gen.hifigan import HiFTGenerator

        self.model = HiFTGenerator(
            in_channels=8, base_channels=16, nb_harmonics=2, upsample_rates=[4, 4], upsample_kernel_sizes=[8, 8],
            f0_predictor=ConvRNNF0Predictor(in_channels=8, cond_channels=8),
        )  # fmt: skip

    def forward(self, mels: torch.Tensor) -> Any:
        return self.model.inference(mels)


class Continuous(nn.Module):
    """A language model of vectors, and its loop."""

    def __init__(self) -> None:
        super().__init__()
        from givt_pytorch import GIVT, GIVTConfig

        self.model = GIVT(
            GIVTConfig(
                input_dim=4, hidden_dim=16, intermediate_dim=32, num_heads=2, num_layers=1, block_size=16
            )
        )

    def forward(self, codes: torch.Tensor) -> Any:
        return self.model(codes), self.model.generate(codes[0, :3], 6, show_progress=False)


class AnchorsOfYolo(nn.Module):
    """A small detector with anchors, and its losses."""

    def __init__(self) -> None:
        super().__init__()
        from yolov7_package.models.yolo import Model
        from yolov7_package.utils.loss import ComputeLoss, ComputeLossOTA

        config = {
            "nc": 3, "depth_multiple": 1.0, "width_multiple": 1.0, "anchors": [[4, 5, 8, 10, 13, 16]],
            "backbone": [[-1, 1, "Conv", [8, 3, 2]], [-1, 1, "Conv", [16, 3, 2]], [-1, 1, "Conv", [16, 3, 2]]],
            "head": [[[2], 1, "Detect", ["nc", "anchors"]]],
        }  # fmt: skip
        self.model = Model(config)
        self.model.hyp = {"cls_pw": 1.0, "obj_pw": 1.0, "label_smoothing": 0.0, "fl_gamma": 0.0, "box": 0.05,
                          "obj": 1.0, "cls": 0.5, "anchor_t": 4.0}  # fmt: skip
        self.model.gr = 1.0
        self.loss, self.assigned = ComputeLoss(self.model), ComputeLossOTA(self.model)

    def forward(self, images: torch.Tensor, targets: torch.Tensor) -> Any:
        self.model.train()
        maps = self.model(images)
        losses = self.loss(maps, targets), self.assigned(maps, targets, images)
        self.model.eval()
        return losses, self.model(images)


class Patches(nn.Module):
    """An encoder of images and a predictor of what is masked in them."""

    def __init__(self) -> None:
        super().__init__()
        from vjepa.models.predictor import VisionTransformerPredictor
        from vjepa.models.vision_transformer import VisionTransformer

        sizes: dict[str, Any] = {
            "img_size": 16,
            "patch_size": 4,
            "num_frames": 1,
            "embed_dim": 16,
            "num_heads": 2,
        }
        self.encoder = VisionTransformer(depth=1, **sizes)
        self.predictor = VisionTransformerPredictor(
            depth=1, predictor_embed_dim=16, use_mask_tokens=True, **sizes
        )

    def forward(self, images: torch.Tensor, seen: torch.Tensor, hidden: torch.Tensor) -> Any:
        context = self.encoder(images, masks=seen)
        return self.predictor(context, None, seen, hidden)
