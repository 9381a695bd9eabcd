"""Programs: captured, changed by passes, compiled, run."""
