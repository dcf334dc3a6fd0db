"""What trains and tunes evaluators: labels, training, ablation, choice of theta and beta."""
