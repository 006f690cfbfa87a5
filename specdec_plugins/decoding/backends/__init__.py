"""What computes a model's passes: PyTorch, or compiled kernels on a CPU."""
