"""A small anchor-based detector."""

import sys
from pathlib import Path

import torch


def tiny():
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from anchor_det.models import Detector

    cfg = {"backbone": {"type": "tiny_fpn"}, "head": {"type": "anchor", "num_classes": 3}}
    return Detector(cfg).eval(), [{"images": torch.rand(2, 3, 32, 32)}]
