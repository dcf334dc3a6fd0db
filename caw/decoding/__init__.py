"""Decoding: prefill, the step, the slots; how watermark, policy and model meet."""
