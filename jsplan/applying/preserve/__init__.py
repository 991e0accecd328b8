"""Execution of replacements that keep the messages of a stream."""
