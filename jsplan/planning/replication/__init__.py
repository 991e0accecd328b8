"""Mirrors and sources of a stream that a plan changes."""
