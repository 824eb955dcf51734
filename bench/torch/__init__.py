"""Calls of PyTorch's process group over ours, beside Gloo and beside the communicator below."""
