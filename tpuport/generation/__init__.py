"""Text generation with the whole decoding loop on the device."""

from tpuport.generation.run import decoder_of, generate
from tpuport.generation.sizes import kv_cache_bytes

__all__ = ["decoder_of", "generate", "kv_cache_bytes"]
