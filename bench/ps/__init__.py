"""The parameter server: gradients pushed and weights pulled, compared with the same exchange by other libraries."""
