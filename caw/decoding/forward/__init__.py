"""One forward of candidates through the model: attention, caches, layers."""
