"""Backups on disk: one manifest and one archive per stream (see state/SPEC.md)."""
