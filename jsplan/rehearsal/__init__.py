"""Rehearsal of a plan on embedded servers that are configured like the real ones."""
