"""Metrics: accuracy, detection, perplexity, and the scores behind them."""
