"""Search of the attention kernel's block sizes with the TPU's own compiler, and the
data files that it writes.
"""
