"""Tracking by queries: state in a plain class, gates by scores, matches by a greedy loop."""
import numpy as np
import torch
import torch.nn as nn


class Instances:
    def __init__(self, image_size, **kwargs):
        self._image_size = image_size
        self._fields = {}
        for k, v in kwargs.items():
            self.set(k, v)

    def __setattr__(self, name, val):
        if name.startswith("_"):
            super().__setattr__(name, val)
        else:
            self.set(name, val)

    def __getattr__(self, name):
        if name == "_fields" or name not in self._fields:
            raise AttributeError("Cannot find field '{}' in the given Instances!".format(name))
        return self._fields[name]

    def set(self, name, value):
        if len(self._fields):
            assert len(self) == len(value), "Adding a field of length {} to a Instances of length {}".format(len(value), len(self))
        self._fields[name] = value

    def __getitem__(self, item):
        ret = Instances(self._image_size)
        for k, v in self._fields.items():
            ret.set(k, v[item])
        return ret

    def __len__(self):
        for v in self._fields.values():
            return v.__len__()
        raise NotImplementedError("Empty Instances does not support __len__!")


class TrackMemory(nn.Module):
    def __init__(self, dim, score_thresh=0.5, miss_tolerance=2):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 2)
        self.score_thresh, self.miss_tolerance, self.max_obj_id = score_thresh, miss_tolerance, 0

    def assign(self, scores, obj_idxes, disappear):
        for i in range(len(scores)):
            if obj_idxes[i] == -1 and scores[i] >= self.score_thresh:
                obj_idxes[i] = self.max_obj_id
                self.max_obj_id += 1
            elif obj_idxes[i] >= 0 and scores[i] < 0.1:
                disappear[i] += 1
                if disappear[i] >= self.miss_tolerance:
                    obj_idxes[i] = -1
        return obj_idxes, disappear

    def forward(self, query, scores, obj_idxes, disappear):
        obj_idxes, disappear = self.assign(scores, obj_idxes, disappear)
        active_idxes = obj_idxes >= 0
        active = query[active_idxes]
        if len(active) > 0:
            active = active + self.attn(active[:, None], active[:, None], active[:, None])[0][:, 0]
        return active, obj_idxes[active_idxes], disappear


def greedy_match(sim, thresh):
    sim = sim.clone()
    matches = []
    n, m = sim.shape
    for _ in range(min(n, m)):
        best = sim.max()
        if best < thresh:
            break
        flat = torch.argmax(sim)
        i, j = torch.div(flat, m, rounding_mode="floor"), flat % m
        matches.append((int(i), j.item()))
        sim[i, :] = -1
        sim[:, j] = -1
    return matches


def mutual_nearest(desc0, desc1, ratio=None):
    sim = desc0 @ desc1.t()
    nn12 = torch.max(sim, dim=1)[1]
    nn21 = torch.max(sim, dim=0)[1]
    ids1 = torch.arange(0, sim.shape[0], device=desc0.device)
    mask = ids1 == nn21[nn12]
    if ratio is not None and sim.shape[1] > 1:
        top2 = sim.topk(2, dim=1).values
        mask &= top2[:, 1] / top2[:, 0] < ratio
    return torch.stack([ids1[mask], nn12[mask]])


class Tracker(nn.Module):
    def __init__(self, dim=8, queries=5):
        super().__init__()
        self.query = nn.Parameter(torch.randn(queries, dim))
        self.enc = nn.Conv2d(3, dim, 4, 4)
        self.score = nn.Linear(dim, 1)
        self.memory = TrackMemory(dim)
        self.dim = dim

    def forward_single(self, frame, query):
        feats = self.enc(frame).flatten(2)[0].t()
        out = query + (query @ feats.t()).softmax(-1) @ feats
        return out, self.score(out).sigmoid()[:, 0], feats

    def forward(self, frames):
        outputs, prev = [], None
        query = self.query
        obj = query.new_full((len(query),), -1, dtype=torch.long)
        lost = torch.zeros_like(obj)
        for frame in frames:
            out, scores, feats = self.forward_single(frame[None], query)
            active, ids, lost = self.memory(out, scores, obj, lost)
            if prev is not None and len(prev) and len(active):
                pairs = greedy_match(active @ prev.t(), 0.0)
                links = mutual_nearest(active, prev, ratio=0.9)
            else:
                pairs, links = [], None
            h, w = frame.shape[-2:]
            centers = feats[..., :2].sigmoid() * torch.tensor([w, h], dtype=torch.float)
            inst = Instances((h, w), scores=scores, ids=obj)
            outputs.append({"n": len(inst), "pairs": pairs, "links": links, "centers": centers, "top": int(scores.argmax())})
            prev = active.detach()
        order = np.argsort([-o["n"] for o in outputs])
        return [outputs[i] for i in order], torch.stack([o["centers"].mean(0) for o in outputs])


def tiny():
    torch.manual_seed(1)
    return Tracker().eval(), [{"frames": [torch.rand(3, 8, 8) for _ in range(3)]}]
