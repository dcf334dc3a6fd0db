"""What marks cost and how well they are found: tasks, runs, attacks, metrics, reports."""
