"""Code that cannot be traced, over several files."""
