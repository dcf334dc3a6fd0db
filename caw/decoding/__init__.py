"""Decoding: where watermark, policy and model meet. Read plan, decoder, prefill and step, in this order."""
