"""Steps that a CUDA graph can hold, and their callers."""
