"""Files, lines and terminals: nothing here knows of models."""
