"""Carries out replacements that keep a stream's messages, step by step. What they mean is left to `planning.preserve`."""
