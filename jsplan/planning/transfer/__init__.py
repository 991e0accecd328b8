"""Transfers: a stream moves or is replaced with its messages, a consumer with its position."""
