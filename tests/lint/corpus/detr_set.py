"""Set prediction with nested tensors, and the losses' matcher left to training."""
import copy
from typing import List, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NestedTensor(object):
    def __init__(self, tensors, mask: Optional[Tensor]):
        self.tensors = tensors
        self.mask = mask

    def to(self, device):
        cast_tensor = self.tensors.to(device)
        mask = self.mask
        if mask is not None:
            assert mask is not None
            cast_mask = mask.to(device)
        else:
            cast_mask = None
        return NestedTensor(cast_tensor, cast_mask)

    def decompose(self):
        return self.tensors, self.mask

    def __repr__(self):
        return str(self.tensors)


def _max_by_axis(the_list):
    maxes = the_list[0]
    for sublist in the_list[1:]:
        for index, item in enumerate(sublist):
            maxes[index] = max(maxes[index], item)
    return maxes


def nested_tensor_from_tensor_list(tensor_list: List[Tensor]):
    if tensor_list[0].ndim == 3:
        max_size = _max_by_axis([list(img.shape) for img in tensor_list])
        batch_shape = [len(tensor_list)] + max_size
        b, c, h, w = batch_shape
        dtype, device = tensor_list[0].dtype, tensor_list[0].device
        tensor = torch.zeros(batch_shape, dtype=dtype, device=device)
        mask = torch.ones((b, h, w), dtype=torch.bool, device=device)
        for img, pad_img, m in zip(tensor_list, tensor, mask):
            pad_img[: img.shape[0], : img.shape[1], : img.shape[2]].copy_(img)
            m[: img.shape[1], :img.shape[2]] = False
    else:
        raise ValueError("not supported")
    return NestedTensor(tensor, mask)


class PositionEmbeddingSine(nn.Module):
    def __init__(self, num_pos_feats=4, temperature=10000, normalize=True):
        super().__init__()
        self.num_pos_feats, self.temperature, self.normalize = num_pos_feats, temperature, normalize

    def forward(self, tensor_list: NestedTensor):
        x, mask = tensor_list.tensors, tensor_list.mask
        assert mask is not None
        not_mask = ~mask
        y_embed = not_mask.cumsum(1, dtype=torch.float32)
        x_embed = not_mask.cumsum(2, dtype=torch.float32)
        if self.normalize:
            y_embed = y_embed / (y_embed[:, -1:, :] + 1e-6) * 6.28
            x_embed = x_embed / (x_embed[:, :, -1:] + 1e-6) * 6.28
        dim_t = torch.arange(self.num_pos_feats, dtype=torch.float32, device=x.device)
        dim_t = self.temperature ** (2 * (dim_t // 2) / self.num_pos_feats)
        pos_x, pos_y = x_embed[:, :, :, None] / dim_t, y_embed[:, :, :, None] / dim_t
        pos_x = torch.stack((pos_x[:, :, :, 0::2].sin(), pos_x[:, :, :, 1::2].cos()), dim=4).flatten(3)
        pos_y = torch.stack((pos_y[:, :, :, 0::2].sin(), pos_y[:, :, :, 1::2].cos()), dim=4).flatten(3)
        return torch.cat((pos_y, pos_x), dim=3).permute(0, 3, 1, 2)


class Joiner(nn.Sequential):
    def __init__(self, backbone, position_embedding):
        super().__init__(backbone, position_embedding)

    def forward(self, tensor_list: NestedTensor):
        feats = self[0](tensor_list.tensors)
        m = F.interpolate(tensor_list.mask[None].float(), size=feats.shape[-2:]).to(torch.bool)[0]
        out = NestedTensor(feats, m)
        return [out], [self[1](out).to(out.tensors.dtype)]


class MLP(nn.Module):
    def __init__(self, input_dim, hidden_dim, output_dim, num_layers):
        super().__init__()
        self.num_layers = num_layers
        h = [hidden_dim] * (num_layers - 1)
        self.layers = nn.ModuleList(nn.Linear(n, k) for n, k in zip([input_dim] + h, h + [output_dim]))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(x)) if i < self.num_layers - 1 else layer(x)
        return x


class PostProcess(nn.Module):
    @torch.no_grad()
    def forward(self, outputs, target_sizes):
        out_logits, out_bbox = outputs["pred_logits"], outputs["pred_boxes"]
        assert len(out_logits) == len(target_sizes)
        assert target_sizes.shape[1] == 2
        prob = F.softmax(out_logits, -1)
        scores, labels = prob[..., :-1].max(-1)
        cx, cy, w, h = out_bbox.unbind(-1)
        boxes = torch.stack([cx - 0.5 * w, cy - 0.5 * h, cx + 0.5 * w, cy + 0.5 * h], dim=-1)
        img_h, img_w = target_sizes.unbind(1)
        boxes = boxes * torch.stack([img_w, img_h, img_w, img_h], dim=1)[:, None, :]
        results = []
        for s, l, b in zip(scores, labels, boxes):
            keep = s > 0.1
            results.append({"scores": s[keep], "labels": l[keep], "boxes": b[keep]})
        return results


class DETR(nn.Module):
    def __init__(self, dim=8, num_classes=4, num_queries=6, aux_loss=True):
        super().__init__()
        self.backbone = Joiner(nn.Conv2d(3, dim, 4, 4), PositionEmbeddingSine(dim // 2))
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(dim, 2, 16, batch_first=True), 1, enable_nested_tensor=False)
        self.layers = nn.ModuleList([copy.deepcopy(nn.MultiheadAttention(dim, 2, batch_first=True)) for _ in range(2)])
        self.query_embed, self.class_embed = nn.Embedding(num_queries, dim), nn.Linear(dim, num_classes + 1)
        self.bbox_embed, self.aux_loss, self.post = MLP(dim, dim, 4, 3), aux_loss, PostProcess()

    def forward(self, samples: NestedTensor, sizes=None):
        if isinstance(samples, (list, torch.Tensor)):
            samples = nested_tensor_from_tensor_list(samples)
        features, pos = self.backbone(samples)
        src, mask = features[-1].decompose()
        assert mask is not None
        memory = self.encoder((src + pos[-1]).flatten(2).transpose(1, 2))
        hs, out = [], self.query_embed.weight.unsqueeze(0).repeat(len(src), 1, 1)
        for layer in self.layers:
            out = out + layer(out, memory, memory, key_padding_mask=mask.flatten(1))[0]
            hs.append(out)
        hs = torch.stack(hs)
        result = {"pred_logits": self.class_embed(hs)[-1], "pred_boxes": self.bbox_embed(hs).sigmoid()[-1]}
        if self.aux_loss:
            result["aux_outputs"] = [{"pred_logits": a} for a in self.class_embed(hs)[:-1]]
        if sizes is not None:
            result["detections"] = self.post(result, sizes)
        return result


def tiny():
    images = [torch.rand(3, 16, 12), torch.rand(3, 12, 16)]
    return DETR().eval(), [{"samples": images, "sizes": torch.tensor([[16, 12], [12, 16]])}]
