"""The compute kernels, each beside a plain copy."""
