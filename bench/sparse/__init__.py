"""Sparse communication: the gradients of a model, dense and by important chunks."""
