"""Execution of transfers: a stream moves, or is replaced and keeps its messages."""
