"""Attention of a language model and of a video transformer, on eight devices, and what computed each call."""
