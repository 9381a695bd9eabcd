import torch
from torch import nn

from anchor_det.ops.boxes import batched_nms, clip_boxes, decode, remove_small
from anchor_det.registry import HEADS


class AnchorGenerator(nn.Module):
    def __init__(self, sizes, ratios=(0.5, 1.0, 2.0)):
        super().__init__()
        self.sizes = sizes
        self.ratios = ratios
        self.cell_anchors = [self.base(s) for s in sizes]

    def base(self, size):
        ratios = torch.tensor(self.ratios)
        hs = size * ratios.sqrt()
        ws = size / ratios.sqrt()
        return torch.stack([-ws, -hs, ws, hs], dim=1).round() / 2

    @property
    def num_anchors(self):
        return len(self.ratios)

    def forward(self, image_size, feats):
        anchors = []
        for feat, base in zip(feats, self.cell_anchors):
            h, w = feat.shape[-2:]
            stride_h, stride_w = image_size[0] // h, image_size[1] // w
            ys = torch.arange(0, h, device=feat.device) * stride_h
            xs = torch.arange(0, w, device=feat.device) * stride_w
            y, x = torch.meshgrid(ys, xs, indexing="ij")
            shifts = torch.stack((x, y, x, y), dim=-1).reshape(-1, 1, 4)
            anchors.append((shifts + base.to(feat)).reshape(-1, 4))
        return anchors


@HEADS.register("anchor")
class AnchorHead(nn.Module):
    def __init__(self, in_channels, num_classes, score_thresh=0.1, nms_thresh=0.5, topk=20, max_det=10):
        super().__init__()
        self.anchor_generator = AnchorGenerator((8, 16))
        A = self.anchor_generator.num_anchors
        self.cls_logits = nn.Conv2d(in_channels, A * num_classes, 3, padding=1)
        self.bbox_pred = nn.Conv2d(in_channels, A * 4, 3, padding=1)
        self.num_classes = num_classes
        self.score_thresh, self.nms_thresh = score_thresh, nms_thresh
        self.topk, self.max_det = topk, max_det

    def flatten(self, x, k):
        N, _, H, W = x.shape
        return x.view(N, -1, k, H, W).permute(0, 3, 4, 1, 2).reshape(N, -1, k)

    def forward(self, images, features):
        feats = list(features.values())
        logits = [self.flatten(self.cls_logits(f), self.num_classes) for f in feats]
        deltas = [self.flatten(self.bbox_pred(f), 4) for f in feats]
        anchors = self.anchor_generator(images.shape[-2:], feats)
        if self.training:
            return logits, deltas, anchors
        return self.postprocess(logits, deltas, anchors, [tuple(im.shape[-2:]) for im in images])

    def postprocess(self, logits, deltas, anchors, image_shapes):
        detections = []
        for n in range(len(image_shapes)):
            boxes, scores, labels = [], [], []
            for lvl_logits, lvl_deltas, lvl_anchors in zip(logits, deltas, anchors):
                lvl_scores = lvl_logits[n].sigmoid().flatten()
                keep = lvl_scores > self.score_thresh
                lvl_scores = lvl_scores[keep]
                topk_idxs = torch.where(keep)[0]
                num_topk = min(self.topk, topk_idxs.size(0))
                lvl_scores, idxs = lvl_scores.topk(num_topk)
                topk_idxs = topk_idxs[idxs]
                anchor_idxs = torch.div(topk_idxs, self.num_classes, rounding_mode="floor")
                b = decode(lvl_anchors[anchor_idxs], lvl_deltas[n][anchor_idxs])
                boxes.append(clip_boxes(b, image_shapes[n]))
                scores.append(lvl_scores)
                labels.append(topk_idxs % self.num_classes)
            boxes, scores, labels = torch.cat(boxes), torch.cat(scores), torch.cat(labels)
            big = remove_small(boxes, 1e-2)
            boxes, scores, labels = boxes[big], scores[big], labels[big]
            keep = batched_nms(boxes, scores, labels, self.nms_thresh)[: self.max_det]
            detections.append({"boxes": boxes[keep], "scores": scores[keep], "labels": labels[keep]})
        return detections
