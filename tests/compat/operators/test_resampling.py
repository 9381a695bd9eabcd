import pytest
import torch
from torch.nn import functional

X = torch.randn(1, 2, 5, 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("align_corners", [False, True])
def test_bicubic(agree, dtype, align_corners):
    def resize(x):
        return [
            functional.interpolate(x, size=(9, 4), mode="bicubic", align_corners=align_corners),
            functional.interpolate(x, scale_factor=1.7, mode="bicubic", align_corners=align_corners),
        ]

    agree(resize, X.to(dtype), tolerance=max(1e-5, 2 * torch.finfo(dtype).eps))
