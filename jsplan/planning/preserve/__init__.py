"""Replacements that keep the messages of a stream or the position of a consumer."""
