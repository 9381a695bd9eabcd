"""a detector: boxes and instances as objects, a multibox loss, post-processing under an alias, tracks in a dict"""
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass, field
from enum import Enum
from typing import Dict, List
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

Detection = namedtuple("Detection", "box score label")


class BoxMode(Enum):
    XYXY = 0
    XYWH = 1


class Boxes:
    def __init__(self, tensor, mode=BoxMode.XYXY):
        self.tensor = tensor
        self.mode = mode

    def area(self):
        b = self.tensor
        return (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])

    def __getitem__(self, item):
        return Boxes(self.tensor[item], self.mode)

    def __len__(self):
        return self.tensor.shape[0]

    def __iter__(self):
        yield from self.tensor

    def nonempty(self, threshold=0.0):
        b = self.tensor
        return ((b[:, 2] - b[:, 0]) > threshold) & ((b[:, 3] - b[:, 1]) > threshold)

    @classmethod
    def cat(cls, boxes):
        return cls(torch.cat([b.tensor for b in boxes], dim=0))

    @property
    def device(self):
        return self.tensor.device


class Instances:
    def __init__(self, image_size, **kwargs):
        self._image_size = image_size
        self._fields = {}
        for k, v in kwargs.items():
            self.set(k, v)

    def set(self, name, value):
        self._fields[name] = value

    def get(self, name):
        return self._fields[name]

    def __setattr__(self, name, val):
        if name.startswith("_"):
            super().__setattr__(name, val)
        else:
            self.set(name, val)

    def __getattr__(self, name):
        if name == "_fields" or name not in self._fields:
            raise AttributeError(name)
        return self._fields[name]

    def __getitem__(self, item):
        ret = Instances(self._image_size)
        for k, v in self._fields.items():
            ret.set(k, v[item])
        return ret

    def __len__(self):
        for v in self._fields.values():
            return len(v)
        return 0


def jaccard(a, b):
    A, B = a.size(0), b.size(0)
    mx = torch.min(a[:, 2:].unsqueeze(1).expand(A, B, 2), b[:, 2:].unsqueeze(0).expand(A, B, 2))
    mn = torch.max(a[:, :2].unsqueeze(1).expand(A, B, 2), b[:, :2].unsqueeze(0).expand(A, B, 2))
    inter = torch.clamp(mx - mn, min=0).prod(-1)
    ar = ((a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])).unsqueeze(1)
    br = ((b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])).unsqueeze(0)
    return inter / (ar + br - inter)


def match(threshold, truths, priors, labels, loc_t, conf_t, idx):
    overlaps = jaccard(truths, priors)
    best_prior_overlap, best_prior_idx = overlaps.max(1, keepdim=True)
    best_truth_overlap, best_truth_idx = overlaps.max(0, keepdim=True)
    best_truth_idx.squeeze_(0)
    best_truth_overlap.squeeze_(0)
    best_prior_idx.squeeze_(1)
    for j in range(best_prior_idx.size(0)):
        best_truth_idx[best_prior_idx[j]] = j
    conf = labels[best_truth_idx] + 1
    conf[best_truth_overlap < threshold] = 0
    loc_t[idx] = truths[best_truth_idx]
    conf_t[idx] = conf


class MultiBoxLoss(nn.Module):
    def __init__(self, num_classes, overlap_thresh=0.5, neg_pos=3):
        super().__init__()
        self.num_classes = num_classes
        self.threshold = overlap_thresh
        self.negpos_ratio = neg_pos

    def forward(self, predictions, targets):
        loc_data, conf_data, priors = predictions
        num = loc_data.size(0)
        num_priors = priors.size(0)
        loc_t = torch.zeros(num, num_priors, 4, device=loc_data.device)
        conf_t = torch.zeros(num, num_priors, dtype=torch.long, device=loc_data.device)
        for idx in range(num):
            truths = targets[idx][:, :-1].data
            labels = targets[idx][:, -1].long()
            match(self.threshold, truths, priors.data, labels, loc_t, conf_t, idx)
        pos = conf_t > 0
        num_pos = pos.sum(dim=1, keepdim=True)
        pos_idx = pos.unsqueeze(pos.dim()).expand_as(loc_data)
        loc_p = loc_data[pos_idx].view(-1, 4)
        loc_g = loc_t[pos_idx].view(-1, 4)
        loss_l = F.smooth_l1_loss(loc_p, loc_g, reduction="sum")
        batch_conf = conf_data.reshape(-1, self.num_classes)
        loss_c = torch.logsumexp(batch_conf, 1, keepdim=True) - batch_conf.gather(1, conf_t.view(-1, 1))
        loss_c = loss_c.view(num, -1)
        loss_c[pos] = 0
        _, loss_idx = loss_c.sort(1, descending=True)
        _, idx_rank = loss_idx.sort(1)
        num_neg = torch.clamp(self.negpos_ratio * num_pos, max=pos.size(1) - 1)
        neg = idx_rank < num_neg.expand_as(idx_rank)
        conf_p = conf_data[(pos.unsqueeze(2).expand_as(conf_data) + neg.unsqueeze(2).expand_as(conf_data)).gt(0)]
        targets_weighted = conf_t[(pos + neg).gt(0)]
        loss_c = F.cross_entropy(conf_p.view(-1, self.num_classes), targets_weighted, reduction="sum")
        N = num_pos.data.sum()
        if N == 0:
            return loss_l * 0, loss_c
        return loss_l / N, loss_c / N


class PostProcess:
    def __init__(self, conf=0.3, top=5, nms=0.5):
        self.conf, self.top, self.nms = conf, top, nms
        self.history = deque(maxlen=3)

    def decode(self, boxes, scores) -> List[Detection]:
        results = []
        cls_scores, cls_ids = scores.max(-1)
        mask = cls_scores.gt(self.conf)
        if not mask.any():
            return results
        boxes, cls_scores, cls_ids = boxes[mask], cls_scores[mask], cls_ids[mask]
        keep = self.suppress(boxes, cls_scores)
        for k in keep:
            results.append(Detection(boxes[k], cls_scores[k].item(), int(cls_ids[k])))
        self.history.append(results)
        return sorted(results, key=lambda d: d.score, reverse=True)

    def suppress(self, boxes, scores):
        order = scores.argsort(descending=True)
        keep = []
        while order.numel() > 0:
            i = order[0]
            keep.append(i)
            if order.numel() == 1:
                break
            iou = jaccard(boxes[i][None], boxes[order[1:]])[0]
            order = order[1:][iou <= self.nms]
        return torch.stack(keep)

    __call__ = decode


@dataclass
class Track:
    id: int
    state: Tensor
    hits: int = 0
    missed: int = 0
    history: List[Tensor] = field(default_factory=list)

    def update(self, det: Detection):
        self.state = 0.9 * self.state + 0.1 * det.box
        self.hits += 1
        self.history.append(self.state)

    @property
    def speed(self):
        return (self.history[-1] - self.history[0]).norm()


class Tracker(nn.Module):
    def __init__(self):
        super().__init__()
        self.tracks: Dict[int, Track] = {}
        self.next_id = 0

    def step(self, dets):
        alive = {}
        for det in dets:
            best, best_iou = None, 0.1
            for tid, t in self.tracks.items():
                iou = jaccard(t.state[None], det.box[None])[0, 0]
                if iou > best_iou:
                    best, best_iou = tid, iou
            if best is None:
                t = Track(self.next_id, det.box)
                self.next_id += 1
            else:
                t = self.tracks[best]
            t.update(det)
            alive[t.id] = t
        self.tracks = alive
        moving = [t for t in alive.values() if t.speed > 0.5]
        return moving, [t.state.tolist() for t in alive.values()]


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1))
        self.loc = nn.Conv2d(8, 4, 1)
        self.conf = nn.Conv2d(8, 3, 1)
        self.criterion = MultiBoxLoss(3, 0.3)
        self.post = PostProcess(0.3)
        self.tracker = Tracker()
        n = 4
        g = torch.stack(torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij"), -1).reshape(-1, 2).flip(-1).float() * 4
        self.register_buffer("priors", torch.cat([g, g + 6], 1))

    def forward(self, x, targets=None):
        f = self.backbone(x)
        loc = self.loc(f).permute(0, 2, 3, 1).flatten(1, 2)
        conf = self.conf(f).permute(0, 2, 3, 1).flatten(1, 2)
        boxes = self.priors + loc
        losses = OrderedDict()
        if targets is not None:
            ll, lc = self.criterion((boxes, conf, self.priors), targets)
            losses.update(loc=ll, conf=lc)
            total = sum(losses.values())
            if not torch.isfinite(total):
                raise ValueError(losses)
            if total > 1e6:
                total = total * 0
        out = [self.post(b, c.softmax(-1)) for b, c in zip(boxes, conf)]
        tr = [self.tracker.step(o) for o in out]
        inst = Instances((16, 16), pred_boxes=Boxes(boxes[0]), scores=conf[0].softmax(-1).amax(-1))
        inst.classes = conf[0].argmax(-1)
        inst = inst[inst.pred_boxes.nonempty()]
        inst = inst[inst.scores > 0.2]
        big = inst.pred_boxes.area().max() > 10
        if big:
            inst = inst[:3]
        n_cls = [int((inst.classes == c).sum()) for c in range(3)]
        all_boxes = Boxes.cat([inst.pred_boxes, Boxes(boxes[0])])
        for b in all_boxes:
            if b[0] > 1e5:
                raise RuntimeError
        return losses, out, tr, n_cls


def tiny():
    torch.manual_seed(0)
    m = Detector().eval()
    return m, [{"x": torch.randn(2, 3, 16, 16), "targets": [torch.tensor([[1.0, 1, 8, 8, 0], [5, 5, 12, 12, 1]]), torch.tensor([[2.0, 2, 9, 9, 1]])]}]
