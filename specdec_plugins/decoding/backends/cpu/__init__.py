"""Passes by kernels compiled for this CPU."""
