"""Stored positions made up for tests: no model behind them."""

from pathlib import Path

import numpy as np
import torch

from caw.record import RECORD_SIZE, Record
from caw_lab.training.positions import Positions


def made_up_positions(folder: Path, *, documents: int = 60, tokens: int = 40, signal: float = 4.0) -> Positions:
    """`tokens` tokens in each document, half of them key; the logits of a key token's p_i are `signal` times as
    steep. signal 1: labels say nothing about the records."""
    generator = np.random.default_rng(5)
    rows = np.full(documents, tokens + 4)
    store = Positions.create(folder, rows, documents * tokens)
    key = generator.random((documents, tokens)) < 0.5
    steep = np.ones((documents, tokens + 4))
    steep[:, 3:-1] = np.where(key, signal, 1.0)
    logits = torch.from_numpy(
        generator.normal(size=(documents * (tokens + 4), RECORD_SIZE + 29)) * steep.reshape(-1, 1)
    )
    record = Record.from_logits(logits.float())
    store.arrays["values"][:] = record.values.numpy()
    store.arrays["ids"][:] = record.ids.numpy()
    store.arrays["logsumexp"][:] = record.logsumexp.numpy()
    log_probs = logits.log_softmax(-1)
    store.arrays["entropy"][:] = -(log_probs.exp() * log_probs).sum(-1).numpy()
    store.arrays["key"][:] = key.reshape(-1)
    row = np.arange(tokens)[None, :] + 3 + store.bounds[:-1, None]
    store.arrays["row"][:] = row.reshape(-1)
    store.arrays["document"][:] = np.repeat(np.arange(documents), tokens)
    # every third token is not the model's own choice
    top = record.ids[:, 0].numpy()[row.reshape(-1)]
    store.arrays["token"][:] = np.where(np.arange(documents * tokens) % 3 == 0, top + 1, top)
    names = [f"made/up/{i}" for i in range(documents)]
    return store.close(folder, {"model": "none", "dtype": "float32", "documents": names})
