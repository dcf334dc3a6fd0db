"""What is measured: accuracy, detection of marks, perplexity; and the scores that these are made from."""
