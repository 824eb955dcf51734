"""The compute kernels, each compared with a plain copy."""
