"""What calls models of language, speech and sound of `benchmarks.tiny_strangers_ninth`, as their READMEs do.

The linter reads this file with them.
"""

from typing import Any

import torch
from torch import nn


class Phonemes(nn.Module):
    """A model of pronunciations in one pass, and its decoding."""

    def __init__(self) -> None:
        super().__init__()
        from dp.model.model import ForwardTransformer

        self.model = ForwardTransformer(20, 20, d_model=16, d_fft=32, layers=1, heads=2)

    def forward(self, text: torch.Tensor) -> Any:
        return self.model({"text": text}), self.model.generate({"text": text})


class PhonemesByStep(nn.Module):
    """A model of pronunciations step by step, and its loop."""

    def __init__(self) -> None:
        super().__init__()
        from dp.model.model import AutoregressiveTransformer

        self.model = AutoregressiveTransformer(
            20, 20, end_index=3, d_model=16, d_fft=32, encoder_layers=1, decoder_layers=1, heads=2
        )

    def forward(self, text: torch.Tensor, phonemes: torch.Tensor, start: torch.Tensor) -> Any:
        logits = self.model({"text": text, "phonemes": phonemes})
        return logits, self.model.generate({"text": text, "start_index": start}, max_len=3)


class LongMemory(nn.Module):
    """Memory cells in parallel form, and one step in recurrent form."""

    def __init__(self) -> None:
        super().__init__()
        from xlstm import mLSTMBlockConfig, mLSTMLayerConfig, xLSTMLMModel, xLSTMLMModelConfig

        block = mLSTMBlockConfig(
            mlstm=mLSTMLayerConfig(num_heads=2, conv1d_kernel_size=2, qkv_proj_blocksize=2)
        )
        self.model = xLSTMLMModel(
            xLSTMLMModelConfig(
                mlstm_block=block, context_length=8, num_blocks=1, embedding_dim=16, vocab_size=50
            )
        )

    def forward(self, ids: torch.Tensor) -> Any:
        logits = self.model(ids)
        first, state = self.model.step(ids[:, :1])
        return logits, first, self.model.step(ids[:, 1:2], state=state)


class LargeMemory(nn.Module):
    """The large model of memory cells, and its loop."""

    def __init__(self) -> None:
        super().__init__()
        from xlstm.xlstm_large.model import xLSTMLarge, xLSTMLargeConfig

        self.model = xLSTMLarge(
            xLSTMLargeConfig(
                embedding_dim=16, num_heads=2, num_blocks=1, vocab_size=50, return_last_states=True,
                chunkwise_kernel="chunkwise--native_autograd", sequence_kernel="native_sequence__native",
                step_kernel="native", mode="inference", chunk_size=4,
            )
        )  # fmt: skip

    def forward(self, ids: torch.Tensor) -> Any:
        return self.model(ids), self.model.generate(ids[:, :4], max_length=3)


class Llama(nn.Module):
    """The reference Llama, with its cache, and the sampling of its loop."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        import fairscale.nn.model_parallel.initialize as parallel
        from llama_models.llama3.args import ModelArgs
        from llama_models.llama3.model import Transformer

        if not torch.distributed.is_initialized():
            store = torch.distributed.FileStore(tempfile.mktemp(), 1)
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        if not parallel.model_parallel_is_initialized():
            parallel.initialize_model_parallel(1)
        self.model = Transformer(
            ModelArgs(
                dim=16, n_layers=1, n_heads=2, n_kv_heads=1, vocab_size=50, multiple_of=8, max_batch_size=2,
                max_seq_len=16,
            )
        )  # fmt: skip
        for block in self.model.layers:
            block.attention.cache_k, block.attention.cache_v = torch.zeros(2, 2, 16, 1, 8)
        for weight in self.model.parameters():
            nn.init.normal_(weight, std=0.1)

    def forward(self, ids: torch.Tensor) -> Any:
        from llama_models.llama3.generation import sample_top_p

        logits = self.model(ids[:, :4], 0)
        token = sample_top_p(torch.softmax(logits[:, -1] / 0.6, dim=-1), 0.9)
        return self.model(token, 4)


class Olmo(nn.Module):
    """A language model of OLMo's kind."""

    def __init__(self) -> None:
        super().__init__()
        from olmo_core.nn.transformer import TransformerConfig

        config = TransformerConfig.llama_like(d_model=16, vocab_size=50, n_layers=1, n_heads=2)
        self.model = config.build(init_device="cpu")

    def forward(self, ids: torch.Tensor) -> Any:
        return self.model(ids), self.model(ids, labels=ids, return_logits=True)


class Music(nn.Module):
    """A language model of codes of music, and its loop."""

    def __init__(self) -> None:
        super().__init__()
        from audiocraft.models.lm import LMModel
        from audiocraft.modules.codebooks_patterns import DelayedPatternProvider
        from audiocraft.modules.conditioners import ConditionFuser, ConditioningProvider

        fuser = ConditionFuser({"cross": [], "prepend": [], "sum": [], "input_interpolate": []})
        self.model = LMModel(
            DelayedPatternProvider(n_q=2), ConditioningProvider({}), fuser, n_q=2, card=16, dim=16, num_heads=2,
            num_layers=1, causal=True, custom=True,
        )  # fmt: skip

    def forward(self, codes: torch.Tensor) -> Any:
        made = self.model.generate(codes[..., :2], max_gen_len=5, top_k=4, check=True)
        return self.model.compute_predictions(codes, []), made


class Codec(nn.Module):
    """A codec of sound, trained and asked for codes."""

    def __init__(self) -> None:
        super().__init__()
        from audiocraft.models.encodec import EncodecModel
        from audiocraft.modules.seanet import SEANetDecoder, SEANetEncoder
        from audiocraft.quantization import ResidualVectorQuantizer

        sizes: dict[str, Any] = {"dimension": 16, "n_filters": 4, "n_residual_layers": 1, "ratios": [4, 2]}
        quantizer = ResidualVectorQuantizer(dimension=16, n_q=2, bins=8, kmeans_iters=2)
        self.model = EncodecModel(
            SEANetEncoder(**sizes),
            SEANetDecoder(**sizes),
            quantizer,
            frame_rate=100,
            sample_rate=800,
            channels=1,
        )

    def forward(self, waves: torch.Tensor) -> Any:
        self.model.train()
        trained = self.model(waves)
        self.model.eval()
        codes, scale = self.model.encode(waves)
        return trained, self.model.decode(codes, scale)


class Descript(nn.Module):
    """A codec of sound with factorized codes."""

    def __init__(self) -> None:
        super().__init__()
        from dac.model.dac import DAC

        self.model = DAC(
            encoder_dim=4, encoder_rates=[2, 4], latent_dim=16, decoder_dim=16, decoder_rates=[4, 2],
            n_codebooks=2, codebook_size=8, codebook_dim=4, quantizer_dropout=0.5, sample_rate=800,
        )  # fmt: skip

    def forward(self, waves: torch.Tensor) -> Any:
        self.model.train()
        trained = self.model(waves)
        self.model.eval()
        z, codes, *_ = self.model.encode(waves)
        return trained, self.model.decode(z), self.model.quantizer.from_codes(codes)


class Flow(nn.Module):
    """Speech by flow matching, trained and sampled."""

    def __init__(self) -> None:
        super().__init__()
        from f5_tts.model.backbones.dit import DiT
        from f5_tts.model.cfm import CFM

        net = DiT(
            dim=16, depth=1, heads=2, dim_head=8, ff_mult=2, mel_dim=8, text_num_embeds=20, text_dim=8,
            conv_layers=1,
        )  # fmt: skip
        self.model = CFM(net, num_channels=8)

    def forward(self, mels: torch.Tensor, text: torch.Tensor, lengths: torch.Tensor) -> Any:
        loss = self.model(mels, text, lens=lengths)
        return loss, self.model.sample(mels[:, :6], text, duration=12, lens=lengths // 2, steps=2)


class Segmentation(nn.Module):
    """Who speaks when, from waves."""

    def __init__(self) -> None:
        super().__init__()
        from pyannote.audio.core.task import Problem, Resolution, Specifications
        from pyannote.audio.models.segmentation import PyanNet

        self.model = PyanNet(
            lstm={"hidden_size": 8, "num_layers": 1}, linear={"hidden_size": 8, "num_layers": 1}
        )
        self.model.specifications = Specifications(
            problem=Problem.MULTI_LABEL_CLASSIFICATION, resolution=Resolution.FRAME, duration=1.0,
            classes=["a", "b"],
        )  # fmt: skip
        self.model.build()

    def forward(self, waveforms: torch.Tensor) -> Any:
        return self.model(waveforms)


class Sentences(nn.Module):
    """A model of sentences under a loss of pairs."""

    def __init__(self) -> None:
        super().__init__()
        from sentence_transformers.sentence_transformer.modules import Pooling

        self.pooling = Pooling(16, pooling_mode="mean")

    def forward(self, embeddings: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.pooling({"token_embeddings": embeddings, "attention_mask": mask})


class Speech(nn.Module):
    """Semantic tokens of text, and acoustic tokens of these."""

    def __init__(self) -> None:
        super().__init__()
        from whisperspeech.t2s_up_wds_mlang_enclm import TSARTransformer

        self.model = TSARTransformer(
            depth=2, n_head=2, head_width=8, ttoks_len=8, ttoks_codes=50, ttoks_width=16, stoks_len=8,
            stoks_codes=20, stoks_width=16,
        )  # fmt: skip

    def forward(
        self, text: torch.Tensor, languages: torch.Tensor, rates: torch.Tensor, codes: torch.Tensor
    ) -> Any:
        return self.model(text, text, languages, rates, codes, codes)


class Latents(nn.Module):
    """A denoiser of latent spectrograms under its sampler."""

    def __init__(self) -> None:
        super().__init__()
        from audioldm.latent_diffusion.openaimodel import UNetModel

        self.model = UNetModel(
            image_size=8, in_channels=4, model_channels=32, out_channels=4, num_res_blocks=1,
            attention_resolutions=[2], channel_mult=(1, 2), num_heads=2, use_spatial_transformer=True,
            transformer_depth=1, extra_film_condition_dim=8,
        )  # fmt: skip

    def forward(self, x: torch.Tensor, timesteps: torch.Tensor, y: torch.Tensor) -> Any:
        return self.model(x, timesteps=timesteps, y=y)
