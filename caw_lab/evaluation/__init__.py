"""Evaluation of watermarks: tasks, runs, attacks, metrics, reports."""
