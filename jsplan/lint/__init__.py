"""Advice on the configuration: one rule per file, over the whole graph. Pure."""
