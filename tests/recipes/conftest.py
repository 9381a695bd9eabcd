"""One torch thread for the recipes' tests, whose models are so small that more threads only wait."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Set torch to one thread, and back at the end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
