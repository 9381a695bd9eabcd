"""Modules in the place of packages that models are trained or configured with, where these are not installed."""

import atexit
import importlib.util
import inspect
import sys
import types
import typing
from typing import Any

from torch import nn

# Packages that models are trained or configured with. Others may be asked for to see whether they are installed.
_STAND_INS = frozenset(
    "Bio Levenshtein MDAnalysis SimpleITK absl adaptdl addict ai4ts aim aiohttp albumentations ale_py "
    "anarci anndata anyascii apprise argbind ase astartes asyml_utilities atdataset audiolm_pytorch "
    "audioread audiotools autofaiss av azure backoff base58 batchgenerators benchpots bidi bioimageio "
    "blosc2 boto3 botocore braceexpand brambox bs4 bsuite cached_path cartopy cdsapi cftime "
    "cjm_psl_utils clint cloudpathlib clusterscope colorlog comet_ml composer conllu coqpit "
    "coreforecast coremltools cuik_molmaker cupy cupyx cv2 cvxpy dask datasets deepdiff "
    "descriptastorus dgl dm_control docvortex dora dotenv dpu_utils easydict easytorch emoji environs "
    "fairseq fairseq2n faiss fastai fastapi fastcore fastdownload fasthtml fastprogress fastremap "
    "fasttext fill_voids fire flask flatten_dict fvcore g2p_en g2pkk gcsfs gdown gensim gfootball git "
    "google graphviz gruut gym gymnasium h5py habitat hanlp_downloader hickle hiddenlayer holidays "
    "horovod htrmopo humanize hydra hyperpyyaml imageio imagesize imgaug importlib_resources inflect "
    "inspect_ai ipdb ipyleaflet ipywidgets isaacgym iso639 jieba jsonargparse kaldifst lammps "
    "langdetect langid latex2sympy2 lazy_loader libdf librosa lightgbm lightning lightning_utilities "
    "lit_nlp litdata llvmlite lmdb load_atoms locache lxml madmom mahotas marshmallow matplotlib "
    "matscipy mido minari mir_eval misaki mlflow mne mne_bids monotonic_align mp_api mpi4py mpire "
    "mujoco multiprocess munkres mup natsort natten nerfacc nes_py nibabel nir nirtorch nltk "
    "nnutils_pytorch num2words num_to_words numba numerize nv_one_logger nvalchemiops "
    "ocf_data_sampler omegaconf onnx onnxsim openai openenv openmm opentelemetry optuna orbax orjson "
    "ot overrides paderbox pandas parselmouth pdbfixer pdfminer pebble penman pesq pettingzoo "
    "phonemizer phono3py phonopy plotly polars portalocker pretty_midi prettytable pyarrow pybullet "
    "pyclipper pycocotools pyfaidx pygame pylatexenc pymatgen pynng pynvml pyonmttok pypar pypdf "
    "pypdfium2 pypinyin pyproj pysbd pyspark pytesseract pytorch_custom_utils pytorch_lightning "
    "pytorch_metric_learning pytorch_msssim pytorch_warmup pyts pyworld qiskit qiskit_ibm_runtime "
    "qiskit_nature rapidfuzz rasterio ray rdkit redis resampy resize_right roifile rouge sacremoses "
    "samna samnagui scanpy screeninfo seaborn segtok sensai sentencepiece seqm setproctitle sh "
    "shapely skia skimage sklearn skops skopt skorch sleap_io smac sounddevice soundfile spacy "
    "spear_tts_pytorch starlette streamlit stringcase submitit supersuit supervision tabulate taming "
    "tenacity tensorboard tensorboardX termcolor texttable tifffile tiktoken torbi torch_dimcheck "
    "torch_ema torch_geometric torch_scope torchao torchaudio torchcodec torchdata torchinfo "
    "torchmetrics torchnlp torchsde torchtext torchtnt trainer trimesh trueskill tsdb tslearn udtools "
    "unidecode utilsforecast uvicorn validators vapoursynth visdom viser vocos wandb webdataset "
    "websockets wfdb wget word2number xarray xgboost xtcocotools xxhash yamlargparse yapecs "
    "youtokentome zarr zstd".split()
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
        finder: Any = _Finder()
        sys.meta_path.append(finder)
        # What libraries import when Python ends, such as tabulate for torch's log, they use.
        atexit.register(sys.meta_path.remove, finder)
    allow_torchvision_of_gpus()


def allow_torchvision_of_gpus() -> None:
    """Let torchvision's build for GPUs be imported: it registers more for its own operators, which it lacks here."""
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("_meta_registrations"))
