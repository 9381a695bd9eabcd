"""What Python lacks: small modules that know nothing of models, torch or jax."""
