"""Reports of a check: as text and as a page."""
