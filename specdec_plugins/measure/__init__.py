"""Measuring, and showing what was measured."""
