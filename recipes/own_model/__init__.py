"""Two models of research code, before and after they were ported."""
