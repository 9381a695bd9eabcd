import math
from copy import deepcopy
import torch
import torch.nn as nn
import torch.nn.functional as F


def bbox_iou(a, b, xywh=True, CIoU=False, eps=1e-7):
    x1, y1, w1, h1 = a.chunk(4, -1)
    x2, y2, w2, h2 = b.chunk(4, -1)
    inter = torch.min(w1, w2).clamp(0) * torch.min(h1, h2).clamp(0)
    return inter / (w1 * h1 + w2 * h2 - inter + eps)


class Assigner(nn.Module):
    def __init__(self, topk=3, num_classes=4, alpha=1.0):
        super().__init__()
        self.topk, self.nc, self.alpha = topk, num_classes, alpha

    @torch.no_grad()
    def forward(self, scores, boxes, gt_labels, gt_boxes, mask_gt):
        self.bs = scores.shape[0]
        self.n_max = gt_boxes.shape[1]
        if self.n_max == 0:
            return torch.full_like(scores[..., 0], self.nc), torch.zeros_like(boxes)
        return self._forward(scores, boxes, gt_labels, gt_boxes, mask_gt)

    def _forward(self, scores, boxes, gt_labels, gt_boxes, mask_gt):
        ov = torch.zeros(self.bs, self.n_max, boxes.shape[1], dtype=scores.dtype, device=scores.device)
        m = mask_gt.expand(-1, -1, boxes.shape[1]).bool()
        pb = boxes.unsqueeze(1).expand(-1, self.n_max, -1, -1)[m]
        gb = gt_boxes.unsqueeze(2).expand(-1, -1, boxes.shape[1], -1)[m]
        ov[m] = bbox_iou(pb, gb).squeeze(-1)
        tgt = ov.argmax(1)
        fg_mask = ov.max(1).values > 0.2
        if fg_mask.max() > 1:
            tgt = tgt * 2
        return tgt, fg_mask


class Criterion:
    def __init__(self, model, tal_topk=3):
        device = next(model.parameters()).device
        m = model.head
        self.stride = m.stride
        self.nc = m.nc
        self.device = device
        self.assigner = Assigner(tal_topk, self.nc)
        self.bce = nn.BCEWithLogitsLoss(reduction="none")
        self.balance = {3: [4.0, 1.0, 0.4]}.get(m.nl, [4.0, 1.0])

    def preprocess(self, targets, batch_size):
        nl, ne = targets.shape
        if nl == 0:
            out = torch.zeros(batch_size, 0, ne - 1, device=self.device)
        else:
            i = targets[:, 0]
            _, counts = i.unique(return_counts=True)
            counts = counts.to(dtype=torch.int32)
            out = torch.zeros(batch_size, counts.max(), ne - 1, device=self.device)
            for j in range(batch_size):
                matches = i == j
                if n := matches.sum():
                    out[j, :n] = targets[matches, 1:]
        return out

    def __call__(self, preds, batch):
        loss = torch.zeros(2, device=self.device)
        feats, _ = preds if isinstance(preds, tuple) else (preds, None)
        x = torch.cat([f.view(f.shape[0], self.nc + 4, -1) for f in feats], 2)
        boxes, scores = x.split((4, self.nc), 1)
        targets = torch.cat((batch["idx"].view(-1, 1), batch["cls"].view(-1, 1), batch["bboxes"]), 1)
        targets = self.preprocess(targets.to(self.device), x.shape[0])
        labels, gt = targets.split((1, 4), 2)
        mask_gt = gt.sum(2, keepdim=True).gt_(0.0)
        t, fg_mask = self.assigner(scores.transpose(1, 2).detach().sigmoid(), boxes.transpose(1, 2), labels, gt, mask_gt)
        total = max(fg_mask.sum(), 1)
        loss[1] = self.bce(scores, torch.zeros_like(scores)).sum() / total
        if fg_mask.sum():
            loss[0] = boxes.transpose(1, 2)[fg_mask].sum()
        return loss.sum() * x.shape[0], loss.detach()


class Head(nn.Module):
    dynamic = False
    shape = None

    def __init__(self, nc=4, ch=(8, 8)):
        super().__init__()
        self.nc, self.nl = nc, len(ch)
        self.stride = torch.zeros(self.nl)
        self.cv = nn.ModuleList(nn.Conv2d(c, nc + 4, 1) for c in ch)

    def forward(self, x):
        for i in range(self.nl):
            x[i] = self.cv[i](x[i])
        if self.training:
            return x
        shape = x[0].shape
        if self.dynamic or self.shape != shape:
            self.shape = shape
        return x, torch.cat([xi.view(shape[0], self.nc + 4, -1) for xi in x], 2)


class BaseModel(nn.Module):
    def forward(self, x, *args, **kwargs):
        if isinstance(x, dict):
            return self.loss(x, *args, **kwargs)
        return self.predict(x, *args, **kwargs)

    def predict(self, x, profile=False):
        y = []
        for m in self.model:
            if m.f != -1:
                x = y[m.f] if isinstance(m.f, int) else [x if j == -1 else y[j] for j in m.f]
            x = m(x)
            y.append(x if m.i in self.save else None)
        return x

    def loss(self, batch, preds=None):
        if not hasattr(self, "criterion"):
            self.criterion = self.init_criterion()
        preds = self.forward(batch["img"]) if preds is None else preds
        return self.criterion(preds, batch)

    def init_criterion(self):
        raise NotImplementedError


class Detector(BaseModel):
    def __init__(self, ch=3):
        super().__init__()
        a, b, h = nn.Conv2d(ch, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1), Head()
        for i, (m, f) in enumerate(((a, -1), (b, -1), (h, [0, 1]))):
            m.i, m.f = i, f
        self.model, self.save = nn.Sequential(a, b, h), [0, 1]
        self.head = h

    def init_criterion(self):
        return Criterion(self)


def tiny():
    b = {"img": torch.rand(2, 3, 16, 16), "idx": torch.tensor([0.0, 0, 1]), "cls": torch.tensor([1.0, 2, 3]), "bboxes": torch.rand(3, 4)}
    return Detector().eval(), [{"x": b}, {"x": torch.rand(2, 3, 16, 16)}]
