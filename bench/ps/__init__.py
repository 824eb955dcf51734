"""The parameter server: gradients pushed and weights pulled, beside the same exchange by other means."""
