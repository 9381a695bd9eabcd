"""Where the commands of the pages run."""

import pytest

from tests.docs.commands import make_reader_directory


@pytest.fixture
def reader_directory(tmp_path, monkeypatch):
    """The working directory is one that has what the pages name."""
    make_reader_directory(tmp_path)
    monkeypatch.chdir(tmp_path)
