"""Gradient pools: memory whose gradients are averaged, in whole, by chunks, or by the largest entries."""
