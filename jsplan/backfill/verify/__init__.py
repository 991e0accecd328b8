"""Verify a copy by comparing messages on both sides."""
