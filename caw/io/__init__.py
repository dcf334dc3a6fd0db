"""Files, lines and terminals; independent of models."""
