"""The page of the API is written from the package."""

import importlib.util

from tests.docs.pages import ROOT


def test_the_page_of_the_api_lists_every_public_name():
    spec = importlib.util.spec_from_file_location("gen_api", ROOT / "docs" / "gen_api.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert not generator.is_stale(), "run python docs/gen_api.py"
