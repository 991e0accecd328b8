"""Backups on disk: one manifest and one archive per stream (see state/SPEC.md). Taking and restoring them is left to workflows."""
