"""Streams that move to another address with their messages and consumers."""
