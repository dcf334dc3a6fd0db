"""Measurements: evaluators against labels, thresholds against texts."""
