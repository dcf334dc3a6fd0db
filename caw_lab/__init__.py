"""The study beside the library: evaluation, and the training of evaluators and weights. `caw` imports nothing of it."""
