"""Eight virtual CPU devices, and the whole package under a runtime type checker."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TPUPORT_COMPILATION_CACHE", "off")
_FLAG = "--xla_force_host_platform_device_count"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=8".strip()

from hypothesis import settings  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

# For properties whose every example compiles a program, or computes attention in full.
settings.register_profile("few", max_examples=100 if os.environ.get("TPUPORT_THOROUGH") else 8)

install_import_hook("tpuport", "beartype.beartype")
