"""What ``specdec-prepare`` does."""
