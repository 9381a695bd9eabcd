"""Recipe: port a diffusion transformer, HunyuanVideo-1.5, inside a pipeline that stays the user's own."""
