"""Sparse communication: all gradients of a model, dense and by important chunks."""
