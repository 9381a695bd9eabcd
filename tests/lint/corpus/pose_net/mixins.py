import torch


class FlipTestMixin:
    flip_pairs = ((0, 1),)

    def flip_back(self, heatmaps):
        out = heatmaps.flip(-1)
        for a, b in self.flip_pairs:
            index = [b if i == a else a if i == b else i for i in range(out.shape[1])]
            out = out[:, index]
        return out


class DecodeMixin:
    thresh = 0.1

    def get_max_preds(self, heatmaps):
        b, k, h, w = heatmaps.shape
        flat = heatmaps.reshape(b, k, -1)
        maxvals, idx = flat.max(2, keepdim=True)
        preds = torch.cat([idx % w, torch.div(idx, w, rounding_mode="floor")], -1).float()
        return preds * (maxvals > 0.0), maxvals

    def refine(self, heatmaps):
        preds, maxvals = self.get_max_preds(heatmaps)
        h, w = heatmaps.shape[-2:]
        for n in range(preds.shape[0]):
            for p in range(preds.shape[1]):
                px, py = int(preds[n, p, 0] + 0.5), int(preds[n, p, 1] + 0.5)
                if 1 < px < w - 1 and 1 < py < h - 1:
                    hm = heatmaps[n, p]
                    preds[n, p, 0] += torch.sign(hm[py, px + 1] - hm[py, px - 1]) * 0.25
        visible = maxvals[..., 0] > self.thresh
        return [q[v] for q, v in zip(preds, visible)]
