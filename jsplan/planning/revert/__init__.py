"""Revert of an apply: targets, conflicts, losses and differences from the files."""
