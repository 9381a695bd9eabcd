"""What rests on private names of torch, torchax, jax, transformers and diffusers: one
module a library, and what stops when such a name changes (`mechanism`).

All other rooms may import these modules, and use public interfaces otherwise.
"""
