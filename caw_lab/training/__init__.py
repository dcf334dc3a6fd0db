"""Training and tuning of evaluators: labels, training, ablation, choice of theta and beta."""
