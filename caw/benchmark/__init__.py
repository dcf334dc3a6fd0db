"""Cost of watermarking: ways to generate, measured in turns in one run, relative to plain decoding."""
