"""Mask classification for segmentation, with its three kinds of postprocessing."""

import torch
from torch import nn
from torch.nn import functional as F


class PixelDecoder(nn.Module):
    def __init__(self, dims, out):
        super().__init__()
        self.lateral = nn.ModuleDict({f"res{i}": nn.Conv2d(d, out, 1) for i, d in enumerate(dims)})
        self.order = sorted(self.lateral.keys(), reverse=True)

    def forward(self, features):
        y = None
        for name in self.order:
            cur = self.lateral[name](features[name])
            y = cur if y is None else cur + F.interpolate(y, size=cur.shape[-2:], mode="nearest")
        return y


class MaskFormer(nn.Module):
    def __init__(
        self,
        num_queries=6,
        num_classes=4,
        dim=8,
        object_mask_threshold=0.1,
        overlap_threshold=0.1,
        thing_ids=(0, 1),
        semantic_on=True,
        panoptic_on=True,
        instance_on=True,
        topk=5,
    ):
        super().__init__()
        self.backbone = nn.ModuleList([nn.Conv2d(3, dim, 4, 4), nn.Conv2d(dim, dim * 2, 2, 2)])
        self.pixel_decoder = PixelDecoder((dim, dim * 2), dim)
        self.query = nn.Embedding(num_queries, dim)
        self.attn = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.class_embed, self.mask_embed = nn.Linear(dim, num_classes + 1), nn.Linear(dim, dim)
        self.num_classes, self.num_queries, self.topk = num_classes, num_queries, topk
        self.object_mask_threshold, self.overlap_threshold = object_mask_threshold, overlap_threshold
        self.thing_ids = set(thing_ids)
        self.semantic_on, self.panoptic_on, self.instance_on = semantic_on, panoptic_on, instance_on
        self.register_buffer("pixel_mean", torch.tensor([0.4, 0.4, 0.4]).view(-1, 1, 1), False)

    @property
    def device(self):
        return self.pixel_mean.device

    def predict(self, images):
        features, x = {}, images
        for i, layer in enumerate(self.backbone):
            x = layer(x).relu()
            features[f"res{i}"] = x
        pixels = self.pixel_decoder(features)
        q = self.query.weight.unsqueeze(0).repeat(images.shape[0], 1, 1)
        q = q + self.attn(q, *[pixels.flatten(2).transpose(1, 2)] * 2)[0]
        masks = torch.einsum("bqc,bchw->bqhw", self.mask_embed(q), pixels)
        return {"pred_logits": self.class_embed(q), "pred_masks": masks}

    def forward(self, batched_inputs):
        images = [x["image"].to(self.device) for x in batched_inputs]
        images = torch.stack([(x - self.pixel_mean) for x in images])
        outputs = self.predict(images)
        mask_cls_results = outputs["pred_logits"]
        mask_pred_results = F.interpolate(
            outputs["pred_masks"],
            size=(images.shape[-2], images.shape[-1]),
            mode="bilinear",
            align_corners=False,
        )
        del outputs
        processed_results = []
        for mask_cls, mask_pred, inputs in zip(mask_cls_results, mask_pred_results, batched_inputs):
            height, width = inputs.get("height", images.shape[-2]), inputs.get("width", images.shape[-1])
            processed_results.append({})
            if height != mask_pred.shape[-2] or width != mask_pred.shape[-1]:
                mask_pred = F.interpolate(mask_pred[None], size=(height, width), mode="bilinear")[0]
            if self.semantic_on:
                processed_results[-1]["sem_seg"] = self.semantic_inference(mask_cls, mask_pred)
            if self.panoptic_on:
                processed_results[-1]["panoptic_seg"] = self.panoptic_inference(mask_cls, mask_pred)
            if self.instance_on:
                processed_results[-1]["instances"] = self.instance_inference(mask_cls, mask_pred)
        return processed_results

    def semantic_inference(self, mask_cls, mask_pred):
        mask_cls = F.softmax(mask_cls, dim=-1)[..., :-1]
        return torch.einsum("qc,qhw->chw", mask_cls, mask_pred.sigmoid())

    def panoptic_inference(self, mask_cls, mask_pred):
        scores, labels = F.softmax(mask_cls, dim=-1).max(-1)
        mask_pred = mask_pred.sigmoid()
        keep = labels.ne(self.num_classes) & (scores > self.object_mask_threshold)
        cur_scores = scores[keep]
        cur_classes = labels[keep]
        cur_masks = mask_pred[keep]
        cur_prob_masks = cur_scores.view(-1, 1, 1) * cur_masks
        h, w = cur_masks.shape[-2:]
        panoptic_seg = torch.zeros((h, w), dtype=torch.int32, device=cur_masks.device)
        segments_info = []
        current_segment_id = 0
        if cur_masks.shape[0] == 0:
            return panoptic_seg, segments_info
        cur_mask_ids = cur_prob_masks.argmax(0)
        stuff_memory_list = {}
        for k in range(cur_classes.shape[0]):
            pred_class = cur_classes[k].item()
            isthing = pred_class in self.thing_ids
            mask_area = (cur_mask_ids == k).sum().item()
            original_area = (cur_masks[k] >= 0.5).sum().item()
            mask = (cur_mask_ids == k) & (cur_masks[k] >= 0.5)
            if mask_area > 0 and original_area > 0 and mask.sum().item() > 0:
                if mask_area / original_area < self.overlap_threshold:
                    continue
                if not isthing:
                    if int(pred_class) in stuff_memory_list.keys():
                        panoptic_seg[mask] = stuff_memory_list[int(pred_class)]
                        continue
                    else:
                        stuff_memory_list[int(pred_class)] = current_segment_id + 1
                current_segment_id += 1
                panoptic_seg[mask] = current_segment_id
                segments_info.append(
                    {"id": current_segment_id, "isthing": bool(isthing), "category_id": int(pred_class)}
                )
        return panoptic_seg, segments_info

    def instance_inference(self, mask_cls, mask_pred):
        scores = F.softmax(mask_cls, dim=-1)[:, :-1]
        labels = (
            torch.arange(self.num_classes, device=self.device)
            .unsqueeze(0)
            .repeat(self.num_queries, 1)
            .flatten(0, 1)
        )
        scores_per_image, topk_indices = scores.flatten(0, 1).topk(self.topk, sorted=False)
        labels_per_image = labels[topk_indices]
        topk_indices = topk_indices // self.num_classes
        mask_pred = mask_pred[topk_indices]
        if self.panoptic_on:
            keep = torch.zeros_like(scores_per_image).bool()
            for i, lab in enumerate(labels_per_image):
                keep[i] = lab in self.thing_ids
            scores_per_image = scores_per_image[keep]
            labels_per_image = labels_per_image[keep]
            mask_pred = mask_pred[keep]
        pred_masks = (mask_pred > 0).float()
        quality = (mask_pred.sigmoid().flatten(1) * pred_masks.flatten(1)).sum(1) / (
            pred_masks.flatten(1).sum(1) + 1e-6
        )
        return {"masks": pred_masks, "scores": scores_per_image * quality, "labels": labels_per_image}


def tiny():
    torch.manual_seed(3)
    batch = [{"image": torch.rand(3, 16, 16), "height": 20, "width": 20}, {"image": torch.rand(3, 16, 16)}]
    return MaskFormer(object_mask_threshold=0.0).eval(), [{"batched_inputs": batch}]
