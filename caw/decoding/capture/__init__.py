"""Steps that a CUDA graph can hold, and who launches them."""
