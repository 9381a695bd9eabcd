import math
import torch


def box_area(boxes):
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def box_iou(a, b):
    lt = torch.max(a[:, None, :2], b[None, :, :2])
    rb = torch.min(a[:, None, 2:], b[None, :, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    return inter / (box_area(a)[:, None] + box_area(b)[None] - inter + 1e-6)


def decode(anchors, deltas, max_ratio=math.log(1000 / 16)):
    widths = anchors[:, 2] - anchors[:, 0]
    heights = anchors[:, 3] - anchors[:, 1]
    cx, cy = anchors[:, 0] + 0.5 * widths, anchors[:, 1] + 0.5 * heights
    dx, dy, dw, dh = deltas.unbind(-1)
    dw, dh = dw.clamp(max=max_ratio), dh.clamp(max=max_ratio)
    px, py = dx * widths + cx, dy * heights + cy
    pw, ph = dw.exp() * widths, dh.exp() * heights
    return torch.stack([px - 0.5 * pw, py - 0.5 * ph, px + 0.5 * pw, py + 0.5 * ph], dim=-1)


def clip_boxes(boxes, size):
    height, width = size
    x = boxes[..., 0::2].clamp(min=0, max=width)
    y = boxes[..., 1::2].clamp(min=0, max=height)
    return torch.stack((x[..., 0], y[..., 0], x[..., 1], y[..., 1]), -1)


def nms(boxes, scores, threshold):
    """The plain greedy one."""
    order = scores.argsort(descending=True)
    keep = []
    while order.numel() > 0:
        i = order[0]
        keep.append(i)
        if order.numel() == 1:
            break
        iou = box_iou(boxes[i][None], boxes[order[1:]])[0]
        inds = torch.where(iou <= threshold)[0]
        order = order[inds + 1]
    if not keep:
        return torch.zeros(0, dtype=torch.long, device=boxes.device)
    return torch.stack(keep)


def batched_nms(boxes, scores, labels, threshold):
    if boxes.numel() == 0:
        return boxes.new_zeros((0,), dtype=torch.long)
    max_coordinate = boxes.max()
    offsets = labels.to(boxes) * (max_coordinate + 1)
    return nms(boxes + offsets[:, None], scores, threshold)


def remove_small(boxes, min_size):
    ws, hs = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    keep = (ws >= min_size) & (hs >= min_size)
    return torch.where(keep)[0]
