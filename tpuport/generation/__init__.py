"""Text generation with the whole decoding loop on the device.

A call goes through options, prompts, the programs of the model's decoder, and the
host's side of the loop.
"""

from tpuport.generation.decoder_choice import decoder_for
from tpuport.generation.decoding_cache import kv_cache_bytes
from tpuport.generation.generating import generate
from tpuport.generation.language_model import LanguageModel

__all__ = ["LanguageModel", "decoder_for", "generate", "kv_cache_bytes"]
