"""Training: data, objectives, optimisers, the loop, run folders, evaluation."""
