"""Prompts to masks: points with labels, boxes, dense embeddings by masks; automatic filtering behind."""
from typing import Any, Dict, List, Optional, Tuple, Type

import torch
from torch import nn
from torch.nn import functional as F


class PositionEmbeddingRandom(nn.Module):
    def __init__(self, num_pos_feats: int = 4, scale: Optional[float] = None) -> None:
        super().__init__()
        if scale is None or scale <= 0.0:
            scale = 1.0
        self.register_buffer("matrix", scale * torch.randn((2, num_pos_feats)))

    def _pe_encoding(self, coords: torch.Tensor) -> torch.Tensor:
        coords = (2 * coords - 1) @ self.matrix * 6.28
        return torch.cat([torch.sin(coords), torch.cos(coords)], dim=-1)

    def forward(self, size: Tuple[int, int]) -> torch.Tensor:
        h, w = size
        grid = torch.ones((h, w), device=self.matrix.device, dtype=torch.float32)
        y, x = (grid.cumsum(dim=0) - 0.5) / h, (grid.cumsum(dim=1) - 0.5) / w
        return self._pe_encoding(torch.stack([x, y], dim=-1)).permute(2, 0, 1)


class PromptEncoder(nn.Module):
    def __init__(self, dim: int, size: Tuple[int, int], activation: Type[nn.Module] = nn.GELU) -> None:
        super().__init__()
        self.pe_layer, self.size, self.dim = PositionEmbeddingRandom(dim // 2), size, dim
        self.point_embeddings = nn.ModuleList([nn.Embedding(1, dim) for i in range(4)])
        self.not_a_point_embed, self.no_mask_embed = nn.Embedding(1, dim), nn.Embedding(1, dim)
        self.mask_downscaling = nn.Sequential(nn.Conv2d(1, 4, 2, 2), activation(), nn.Conv2d(4, dim, 1))

    def _embed_points(self, points: torch.Tensor, labels: torch.Tensor, pad: bool) -> torch.Tensor:
        points = points + 0.5
        if pad:
            points = torch.cat([points, torch.zeros((points.shape[0], 1, 2), device=points.device)], dim=1)
            labels = torch.cat([labels, -torch.ones((labels.shape[0], 1), device=labels.device)], dim=1)
        emb = self.pe_layer._pe_encoding(points)
        emb[labels == -1] = 0.0
        emb[labels == -1] += self.not_a_point_embed.weight
        emb[labels == 0] += self.point_embeddings[0].weight
        emb[labels == 1] += self.point_embeddings[1].weight
        return emb

    def _get_batch_size(self, points, boxes, masks) -> int:
        if points is not None:
            return points[0].shape[0]
        elif boxes is not None:
            return boxes.shape[0]
        elif masks is not None:
            return masks.shape[0]
        return 1

    def forward(self, points: Optional[Tuple[torch.Tensor, torch.Tensor]], boxes: Optional[torch.Tensor], masks: Optional[torch.Tensor]):
        bs = self._get_batch_size(points, boxes, masks)
        sparse = torch.empty((bs, 0, self.dim), device=self.no_mask_embed.weight.device)
        if points is not None:
            coords, labels = points
            sparse = torch.cat([sparse, self._embed_points(coords, labels, pad=(boxes is None))], dim=1)
        if boxes is not None:
            corner = self.pe_layer._pe_encoding((boxes + 0.5).reshape(-1, 2, 2))
            corner[:, 0, :] += self.point_embeddings[2].weight[0]
            sparse = torch.cat([sparse, corner], dim=1)
        if masks is not None:
            dense = self.mask_downscaling(masks)
        else:
            dense = self.no_mask_embed.weight.reshape(1, -1, 1, 1).expand(bs, -1, *self.size)
        return sparse, dense


def stability_score(masks, threshold, offset):
    inter = (masks > (threshold + offset)).sum(-1, dtype=torch.int16).sum(-1, dtype=torch.int32)
    union = (masks > (threshold - offset)).sum(-1, dtype=torch.int16).sum(-1, dtype=torch.int32)
    return inter / union


def mask_to_box(masks):
    if torch.numel(masks) == 0:
        return torch.zeros(*masks.shape[:-2], 4, device=masks.device)
    h, w = masks.shape[-2:]
    rows = torch.max(masks, dim=-1)[0]
    bottom = torch.max(rows * torch.arange(h, device=rows.device)[None, :], dim=-1)[0]
    top = torch.min(rows * torch.arange(h, device=rows.device)[None, :] + h * (~rows), dim=-1)[0]
    out = torch.stack([top, bottom], dim=-1)
    return out * (~(bottom < top)).unsqueeze(-1)


class SegmentAny(nn.Module):
    mask_threshold: float = 0.0

    def __init__(self, dim=8):
        super().__init__()
        self.image_encoder, self.prompt = nn.Conv2d(3, dim, 4, 4), PromptEncoder(dim, (4, 4))
        self.attn, self.iou = nn.MultiheadAttention(dim, 2, batch_first=True), nn.Linear(dim, 1)

    def forward(self, batched_input: List[Dict[str, Any]], multimask_output: bool) -> List[Dict[str, torch.Tensor]]:
        embeddings = self.image_encoder(torch.stack([x["image"] for x in batched_input], dim=0))
        outputs = []
        for record, emb in zip(batched_input, embeddings):
            points = (record["point_coords"], record["point_labels"]) if "point_coords" in record else None
            sparse, dense = self.prompt(points=points, boxes=record.get("boxes", None), masks=record.get("mask_inputs", None))
            src = (emb[None] + dense).flatten(2).transpose(1, 2)
            q = self.attn(sparse, src, src)[0]
            masks = (q @ src.transpose(1, 2)).unflatten(-1, (4, 4))
            iou = self.iou(q)[..., 0]
            if not multimask_output:
                masks, iou = masks[:, :1], iou[:, :1]
            masks = F.interpolate(masks, record["original_size"], mode="bilinear", align_corners=False)
            score = stability_score(masks, self.mask_threshold, 0.1)
            good = (score >= 0.0) & (iou > -10)
            if not torch.all(good):
                masks = masks[good]
            outputs.append({"masks": masks > self.mask_threshold, "iou": iou, "boxes": mask_to_box(masks > self.mask_threshold)})
        return outputs


def tiny():
    one = {"image": torch.rand(3, 16, 16), "original_size": (16, 16), "point_coords": torch.rand(1, 2, 2), "point_labels": torch.tensor([[1, 0]])}
    two = {"image": torch.rand(3, 16, 16), "original_size": (20, 16), "boxes": torch.rand(1, 4), "mask_inputs": torch.rand(1, 1, 8, 8)}
    return SegmentAny().eval(), [{"batched_input": [one, two], "multimask_output": True}]
