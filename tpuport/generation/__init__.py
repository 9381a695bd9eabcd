"""Text generation with the whole decoding loop on the device."""

from tpuport.generation.cache import kv_cache_bytes
from tpuport.generation.run import decoder_of, generate

__all__ = ["decoder_of", "generate", "kv_cache_bytes"]
