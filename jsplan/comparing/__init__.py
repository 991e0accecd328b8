"""Comparison of two streams, message by message: `jsplan compare`."""
