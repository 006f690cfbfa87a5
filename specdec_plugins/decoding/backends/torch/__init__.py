"""Passes by PyTorch."""
