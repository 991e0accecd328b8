"""Copies messages between streams in bulk. Deciding what should be copied is left to planning."""
