"""What trains and tunes evaluators: labels, the teacher-forced pass, training, ablation, choice of theta and beta."""
