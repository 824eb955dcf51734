"""Compute kernels, each compared with a plain copy."""
