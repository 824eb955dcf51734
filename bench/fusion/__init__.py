"""Ways to average all gradients of a model over the ranks."""
