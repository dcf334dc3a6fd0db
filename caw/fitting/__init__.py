"""What trains evaluators: labels, the teacher-forced pass, training, measures. What decodes is in `evaluator`."""
