"""Optical flow by recurrent updates over all-pairs correlation."""

import sys
from pathlib import Path

import torch


def tiny():
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from flow_net.model import make

    a, b = torch.rand(1, 3, 30, 34) * 255, torch.rand(1, 3, 30, 34) * 255
    return make(), [{"image1": a, "image2": b}, {"image1": a, "image2": b, "test_mode": True}]
