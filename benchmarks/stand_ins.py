"""Modules in the place of packages that models are trained or configured with, where these are not installed."""

import importlib.util
import inspect
import sys
import types
import typing
from typing import Any

from torch import nn

# Packages that models are trained or configured with. Others may be asked for to see whether they are installed.
_STAND_INS = frozenset(
    "addict ai4ts anyascii apprise argbind ase audiolm_pytorch audiotools autofaiss av base58 benchpots bidi "
    "bs4 cached_path cloudpathlib colorlog coqpit coreforecast cuik_molmaker cv2 datasets deepdiff "
    "descriptastorus dgl dora dotenv emoji fairseq faiss fastai fastcore fastdownload fasthtml fastprogress "
    "flatten_dict g2p_en g2pkk gcsfs gdown gensim git google gruut gym gymnasium h5py hydra hyperpyyaml "
    "importlib_resources inflect jieba jsonargparse langdetect libdf librosa lightning lightning_utilities "
    "litdata llvmlite lmdb marshmallow matplotlib matscipy misaki mne multiprocess nir nirtorch nltk num2words "
    "num_to_words numba omegaconf onnx orjson ot overrides pandas phonemizer polars portalocker pyclipper "
    "pycocotools pyfaidx pymatgen pyonmttok pypdfium2 pypinyin pysbd pytorch_custom_utils pytorch_lightning "
    "pytorch_msssim pytorch_warmup pyts pyworld rapidfuzz rdkit resampy resize_right sensai sentencepiece "
    "shapely skimage sklearn skorch soundfile spacy spear_tts_pytorch submitit supervision taming tenacity "
    "tensorboard tensorboardX termcolor tiktoken torbi torch_ema torch_geometric torchao torchaudio torchcodec "
    "torchdata torchmetrics torchsde torchtnt trainer tsdb udtools unidecode utilsforecast validators vocos "
    "wandb zstd".split()
)


class _StandInClass(type):
    """A class that has every attribute; one of a package's own that inherits from it is an ordinary module."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "_stands_in" not in vars(cls):
            return super().__call__(*args, **kwargs)
        if len(args) == 1 and (inspect.isroutine(args[0]) or inspect.isclass(args[0])):
            return args[0]  # a decorator
        return cls


def stand_in(name: str) -> Any:
    """What is imported from a package that is not installed."""
    return _StandInClass(name, (nn.Module,), {"_stands_in": True})


class _StandIn(types.ModuleType):
    """A module that is not installed, in whose place anything can be imported."""

    __path__: typing.ClassVar[list[str]] = []
    __version__ = "99.0"  # newer than whatever is asked for

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)


class _Finder:
    """Finds stand-ins for the packages that are not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in _STAND_INS:
            return None
        return importlib.util.spec_from_loader(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    """Let Python find stand-ins for what is not installed."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())  # type: ignore[arg-type]
    # torchvision registers more for its own operators when it is imported, and its build for GPUs lacks them here.
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("_meta_registrations"))
