"""Revert of an apply: targets, losses and differences from the files."""
