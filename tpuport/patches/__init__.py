"""Functions of known libraries that cannot be traced, or not well, and what stands in for them."""
