from .backbone import TinyFPN
from .head import AnchorHead
from .detector import Detector

__all__ = ["TinyFPN", "AnchorHead", "Detector"]
