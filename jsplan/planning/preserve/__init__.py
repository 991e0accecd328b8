"""Replacements that carry over what the object holds. Carrying them out is left to `applying`."""
