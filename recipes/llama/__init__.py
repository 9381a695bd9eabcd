"""A tiny byte-level Llama: the text it learns, its training, and its port."""
