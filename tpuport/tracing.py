"""The lock of whoever traces: models are changed for as long as they are traced, so one thread does it at a time."""

import threading

lock = threading.RLock()
