"""What recommends, draws and passes messages with models of `benchmarks.tiny_strangers_twelfth`, as their READMEs do.

The linter reads this file with them.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn


class Interested(nn.Module):
    """Models of what users want next, each with its loss and with what it says of users."""

    def __init__(self) -> None:
        super().__init__()
        from rec_pangu.models.sequence.clrec import CLRec
        from rec_pangu.models.sequence.cmi import CMI
        from rec_pangu.models.sequence.comirec import ComirecSA
        from rec_pangu.models.sequence.contrarec import ContraRec
        from rec_pangu.models.sequence.iocrec import IOCRec
        from rec_pangu.models.sequence.mind import MIND
        from rec_pangu.models.sequence.narm import NARM
        from rec_pangu.models.sequence.re4 import Re4
        from rec_pangu.models.sequence.sine import SINE
        from rec_pangu.models.sequence.stamp import STAMP

        kinds = {"item": {"vocab_size": 12}}
        options = {
            "embedding_dim": 8, "max_length": 6, "device": "cpu", "item_col": "item", "cate_cols": [], "K": 2,
            "ffn_hidden": 8,
        }  # fmt: skip
        self.contrastive = ContraRec(kinds, options)
        self.intentions = IOCRec(kinds, options)
        self.capsules = MIND(kinds, options)
        self.attending = ComirecSA(kinds, options)
        self.recurrent = NARM(kinds, options)
        self.backward = Re4(kinds, options)
        self.sparse = SINE(kinds, options)
        self.debiased = CLRec(kinds, options)
        self.mixed = CMI(kinds, options)
        self.short = STAMP(kinds, options)

    def forward(self, items: torch.Tensor, mask: torch.Tensor, target: torch.Tensor) -> Any:
        data = {"hist_item_list": items, "hist_mask_list": mask, "target_item": target}
        first = self.contrastive(data), self.intentions(data), self.capsules(data), self.attending(data)
        second = self.recurrent(data), self.backward(data), self.sparse(data), self.debiased(data)
        return first, second, self.mixed(data), self.short(data)


class Rectified(nn.Module):
    """A flow along straight lines, and its samplers."""

    def __init__(self) -> None:
        super().__init__()
        from rectified_flow.rectified_flow import RectifiedFlow

        self.network = nn.Linear(3, 2)
        self.flow = RectifiedFlow((2,), self.velocity, device=torch.device("cpu"))

    def velocity(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.network(torch.cat([x, t.reshape(-1, 1).expand(len(x), 1)], 1))

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> Any:
        from rectified_flow.samplers.curved_euler_sampler import CurvedEulerSampler
        from rectified_flow.samplers.euler_sampler import EulerSampler
        from rectified_flow.samplers.overshooting_sampler import OverShootingSampler
        from rectified_flow.samplers.sde_sampler import SDESampler

        loss = self.flow.get_loss(noise, x, t=torch.full((len(x),), 0.3, device=x.device))
        straight = EulerSampler(self.flow, num_steps=3).sample_loop(x_0=noise)
        curved = CurvedEulerSampler(self.flow, num_steps=3).sample_loop(x_0=noise)
        over = OverShootingSampler(self.flow, num_steps=3).sample_loop(x_0=noise)
        drawn = SDESampler(self.flow, num_steps=3).sample_loop(x_0=noise)
        return loss, straight.trajectories, curved.trajectories, over.trajectories, drawn.trajectories


class Enhanced(nn.Module):
    """A diffusion of noisy speech, with a predictor and a corrector."""

    def __init__(self) -> None:
        super().__init__()
        from sgmse.sdes import OUVESDE

        self.sde = OUVESDE(1.5, 0.05, 0.5, N=3)
        self.network = nn.Linear(6, 6)

    def score(self, x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.view_as_complex(
            self.network(torch.view_as_real(x - y).flatten(-2)).unflatten(-1, (3, 2))
        )

    def forward(self, speech: torch.Tensor) -> Any:
        from sgmse.sampling import get_pc_sampler

        noisy = torch.view_as_complex(speech)
        sample = get_pc_sampler("reverse_diffusion", "ald", self.sde, self.score, noisy, corrector_steps=1)
        mean, std = self.sde.marginal_prob(
            noisy, noisy, torch.full((len(speech),), 0.5, device=speech.device)
        )
        return sample(), mean, std


class Bonds(nn.Module):
    """Messages between atoms, and what a molecule is like."""

    def __init__(self) -> None:
        super().__init__()
        from chemprop.nn.agg import AttentiveAggregation, NormAggregation
        from chemprop.nn.message_passing.base import AtomMessagePassing, BondMessagePassing

        self.bonds = BondMessagePassing(6, 4, 8, undirected=True)
        self.atoms = AtomMessagePassing(6, 4, 8)
        self.attend, self.norm = AttentiveAggregation(output_size=8), NormAggregation()

    def forward(
        self, atoms: torch.Tensor, bonds: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor
    ) -> Any:
        back = torch.arange(edges.size(1), device=edges.device) ^ 1
        graph = SimpleNamespace(V=atoms, E=bonds, edge_index=edges, rev_edge_index=back, batch=batch)
        states = self.bonds(graph) + self.atoms(graph)
        return self.attend(states, batch), self.norm(states, batch)


class Shaped(nn.Module):
    """A compact code of a shape: its points, planes and what they say of other points."""

    def __init__(self) -> None:
        super().__init__()
        from cod_vae.config import CODVAEConfig
        from cod_vae.torch.model import CODVAEModule

        self.model = CODVAEModule(
            CODVAEConfig(
                latent_dim=4, num_latents=4, embed_dim=16, query_dim=4, num_heads=2, point_embed_hidden_dim=12,
                num_latent_layers=1, encoder_num_patches=8, encoder_num_blocks=1, encoder_num_layers_per_block=1,
                decoder_output_resolution=16, decoder_output_patch_size=4, decoder_num_layers=2,
            )
        )  # fmt: skip

    def forward(self, points: torch.Tensor, queries: torch.Tensor) -> Any:
        planes = self.model.decode_planes(self.model.encode(points))
        return self.model.decode_logits(planes, queries)


class Sorted(nn.Module):
    """Losses of segmentation that sort or choose pixels, and memories of classes."""

    def __init__(self) -> None:
        super().__init__()
        from ssseg.modules.models.losses.lovaszloss import LovaszLoss
        from ssseg.modules.models.samplers.ohempixelsampler import OHEMPixelSampler
        from ssseg.modules.models.segmentors.isnet.semanticlevel import SemanticLevelContext
        from ssseg.modules.models.segmentors.mcibi.memory import FeaturesMemory

        options = {"norm_cfg": {"type": "BatchNorm2d"}, "act_cfg": {"type": "ReLU", "inplace": True}}
        self.network = nn.Conv2d(4, 3, 1)
        self.lovasz, self.binary = (
            LovaszLoss(ignore_index=255),
            LovaszLoss(use_sigmoid=True, ignore_index=255),
        )
        self.sampler = OHEMPixelSampler(thresh=0.7, min_kept_per_image=4, ignore_index=255)
        self.memory = FeaturesMemory(3, 4, 4, 4, use_context_within_image=False, **options)
        self.semantic = SemanticLevelContext(4, 4, **options)

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> Any:
        scores = self.network(features)
        losses = self.lovasz(scores, labels), self.binary(scores[:, :1], (labels > 0).long())
        rates = {"base_momentum": 0.9, "base_lr": 0.01, "adjust_by_learning_rate": False}
        self.memory.update(features, labels, ignore_index=255, momentum_cfg=rates)
        remembered = self.memory(features, scores)
        chosen = self.sampler.sample(scores, labels)
        return losses, remembered, self.semantic(features, scores, features), chosen


class Masks(nn.Module):
    """Masks of a promptable network, as they are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Conv2d(3, 4, 1)

    def forward(self, images: torch.Tensor) -> Any:
        from ssseg.modules.models.segmentors.sam.amg import (
            MaskData,
            batchedmasktobox,
            calculatestabilityscore,
            isboxnearcropedge,
            masktorlepytorch,
        )

        masks = self.network(images)[0]
        stable = calculatestabilityscore(masks, 0.0, 1.0)
        data = MaskData(masks=masks > 0, stable=stable)
        data.filter(stable > 0.1)
        data["boxes"] = batchedmasktobox(data["masks"])
        data.filter(~isboxnearcropedge(data["boxes"], [0, 0, 8, 8], [0, 0, 8, 8]))
        data["codes"] = masktorlepytorch(masks > 0)
        return data["boxes"], data["codes"]


class Celled(nn.Module):
    """A detector of one box a cell, and losses of classes."""

    def __init__(self) -> None:
        super().__init__()
        from holocron.models.detection.yolo import YOLOv1
        from holocron.nn.modules.loss import ComplementCrossEntropy, FocalLoss

        self.model = YOLOv1(
            [[8], [8], [8, 8], [8, 1024]], 3, stem_channels=8, num_anchors=2, head_hidden_nodes=16
        )
        self.losses = nn.ModuleList([FocalLoss(), ComplementCrossEntropy()])

    def forward(
        self, images: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor, scores: torch.Tensor
    ) -> Any:
        output = self.model._format_outputs(self.model._forward(images))
        loss = self.model._compute_losses(*output, [{"boxes": boxes, "labels": labels}])
        return loss, [loss(scores, labels) for loss in self.losses]


class Recorded(nn.Module):
    """Records that a model finds, and the ones that they are matched with."""

    def __init__(self) -> None:
        super().__init__()
        self.objects, self.fields = nn.Linear(8, 1), nn.Linear(8, 10)

    def forward(self, states: torch.Tensor) -> Any:
        from gliner2.models.boundary import records  # noqa: F401 - the two import each other
        from gliner2.training.matching import match_record_instances

        objects = self.objects(states).squeeze(-1)
        fields = self.fields(states).view(len(states), 2, 5)
        return match_record_instances(objects, fields, [[0, 2], [1, 3]])


class Clouds(nn.Module):
    """Clouds of points of several sizes in one batch, and their neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(3, 3)

    def forward(self, points: torch.Tensor, sizes: torch.Tensor, labels: torch.Tensor) -> Any:
        from pointtorch.operations.torch._make_labels_consecutive import make_labels_consecutive
        from pointtorch.operations.torch._neighbor_search import neighbor_search_cdist
        from pointtorch.operations.torch._pack_batch import pack_batch
        from pointtorch.operations.torch._shuffle import shuffle

        packed, mask = pack_batch(self.network(points), sizes)
        near = neighbor_search_cdist(points, points, sizes, sizes, k=3)
        around = neighbor_search_cdist(points, points, sizes, sizes, radius=1.0)
        renamed = make_labels_consecutive(labels, start_id=0, ignore_id=-1)
        return packed, mask, near, around, renamed, shuffle(points, sizes)


class Quantized(nn.Module):
    """Residual codes of latents."""

    def __init__(self) -> None:
        super().__init__()
        from rave.quantization import ResidualVectorQuantization

        self.quantize = ResidualVectorQuantization(
            num_quantizers=2, dim=4, codebook_size=6, kmeans_init=False
        )

    def forward(self, latents: torch.Tensor) -> Any:
        codes = self.quantize.encode(latents)
        return self.quantize(latents), self.quantize.decode(codes)
