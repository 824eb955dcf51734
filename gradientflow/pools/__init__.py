"""Gradient pools: memory whose gradients are averaged as a whole, by chunks, or by the largest entries."""
