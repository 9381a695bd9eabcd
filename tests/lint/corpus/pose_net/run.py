"""Keypoints from heatmaps; the class is put together from mixins of other files."""
import sys
from pathlib import Path

import torch


def tiny():
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from pose_net.model import HourglassPose

    return HourglassPose().eval(), [{"x": torch.rand(2, 3, 16, 16)}, {"x": torch.rand(1, 3, 16, 16), "decode": False}]
