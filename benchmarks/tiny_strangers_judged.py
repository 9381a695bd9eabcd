"""Tiny models of packages that were only ever judged: nobody has read what the linter says of them.

See `benchmarks.tiny_strangers`.
"""

from typing import Any

import torch
from torch import nn

from benchmarks.tiny_strangers_parts import Build, get, model

_TABLE = {"x": torch.randn(3, 4)}


def _encodec() -> tuple[Any, dict[str, Any]]:
    sizes: dict[str, Any] = {"channels": 1, "dimension": 16, "n_filters": 4, "ratios": [4, 2]}
    encoder = get("encodec.modules:SEANetEncoder")(**sizes)
    decoder = get("encodec.modules:SEANetDecoder")(**sizes)
    quantizer = get("encodec.quantization:ResidualVectorQuantizer")(dimension=16, n_q=2, bins=16)
    codec = get("encodec.model:EncodecModel")(encoder, decoder, quantizer, [1.5], 16000, 1, normalize=True)
    return codec, {"x": torch.randn(1, 1, 800)}


def _vocos() -> tuple[Any, dict[str, Any]]:
    backbone = get("vocos.models:VocosBackbone")(16, 16, 32, 2)
    return nn.Sequential(backbone, get("vocos.heads:ISTFTHead")(16, 32, 8)), {"input": torch.randn(1, 16, 20)}


def _log_prob(flow: Any) -> Any:
    flow.eval()
    return lambda x: flow.log_prob(x)


def _nflows(name: str) -> Build:
    return lambda: (_log_prob(get(f"nflows.flows:{name}")(4, 16, 2, 2)), _TABLE)


def _nflows_spline() -> tuple[Any, dict[str, Any]]:
    name = "nflows.transforms:MaskedPiecewiseRationalQuadraticAutoregressiveTransform"
    spline = get(name)(features=4, hidden_features=8, tails="linear", tail_bound=3.0)
    base = get("nflows.distributions:StandardNormal")([4])
    return _log_prob(get("nflows.flows:Flow")(spline, base)), _TABLE


def _normflows_spline() -> tuple[Any, dict[str, Any]]:
    spline = get("normflows.flows:AutoregressiveRationalQuadraticSpline")(4, 1, 8)
    base = get("normflows.distributions:DiagGaussian")(4)
    return _log_prob(
        get("normflows:NormalizingFlow")(base, [spline, get("normflows.flows:ActNorm")(4)])
    ), _TABLE


def _columns(*, with_history: bool) -> tuple[list[Any], torch.Tensor]:
    sparse, dense = get("deepctr_torch.inputs:SparseFeat"), get("deepctr_torch.inputs:DenseFeat")
    columns = [sparse("a", 5, embedding_dim=8), sparse("b", 5, embedding_dim=8), dense("d", 1)]
    if not with_history:
        return columns, torch.randint(0, 3, (6, 3)).float()
    history = get("deepctr_torch.inputs:VarLenSparseFeat")(
        sparse("h", 5, embedding_dim=8), maxlen=4, length_name="hl"
    )
    table = torch.randint(0, 3, (6, 8)).float()
    table[:, -1] = torch.tensor([1.0, 2, 3, 4, 2, 1])
    return [*columns, history], table


def _clicks(name: str) -> Build:
    def build() -> tuple[Any, dict[str, Any]]:
        columns, table = _columns(with_history=name not in {"ONN", "MLR"})
        arguments = [columns] if name in {"MLR", "PNN"} else [columns, columns]
        return get(f"deepctr_torch.models:{name}")(*arguments), {"X": table}

    return build


def _interests(name: str, **options: Any) -> Build:
    def build() -> tuple[Any, dict[str, Any]]:
        sparse = get("deepctr_torch.inputs:SparseFeat")
        history = get("deepctr_torch.inputs:VarLenSparseFeat")(
            sparse("hist_item", 5, embedding_dim=8), maxlen=4, length_name="sl"
        )
        table = torch.randint(1, 4, (6, 6)).float()
        table[:, -1] = torch.tensor([1.0, 2, 3, 4, 2, 1])
        columns = [sparse("item", 5, embedding_dim=8), history]
        return get(f"deepctr_torch.models:{name}")(columns, ["item"], **options), {"X": table}

    return build


MODELS: dict[str, Build] = {
    "encodec.EncodecModel": _encodec,
    "vocos.ISTFTHead": _vocos,
    "facenet_pytorch.InceptionResnetV1": model(
        "facenet_pytorch:InceptionResnetV1", {"x": torch.rand(1, 3, 96, 96)}, classify=True, num_classes=4
    ),
    **{
        f"facenet_pytorch.{name}": model(
            f"facenet_pytorch.models.mtcnn:{name}", {"x": torch.rand(1, 3, size, size)}, pretrained=False
        )
        for name, size in {"PNet": 32, "RNet": 24}.items()
    },
    "torchcrepe.Crepe": model("torchcrepe.model:Crepe", {"x": torch.randn(2, 1024)}, model="tiny"),
    "TTS.LSTM": model(
        "TTS.encoder.models.lstm:LSTMSpeakerEncoder", {"x": torch.randn(2, 8, 10)}, input_dim=8, proj_dim=16,
        lstm_dim=16, num_lstm_layers=1,
    ),
    **{
        f"entmax.{name}": lambda name=name: (get(f"entmax:{name}"), {"X": torch.randn(2, 5)})
        for name in "sparsemax entmax15 entmax_bisect sparsemax_bisect".split()
    },
    "nflows.MAF": _nflows("MaskedAutoregressiveFlow"),
    "nflows.RealNVP": _nflows("SimpleRealNVP"),
    "nflows.NSF": _nflows_spline,
    "normflows.NSF": _normflows_spline,
    **{
        f"deepctr_torch.{name}": _clicks(name)
        for name in "DeepFM WDL NFM AFN AutoInt DCN DCNMix xDeepFM FiBiNET IFM DIFM ONN MLR PNN".split()
    },
    "deepctr_torch.DIN": _interests("DIN"),
    "deepctr_torch.DIEN": _interests("DIEN", gru_type="GRU"),
}  # fmt: skip
