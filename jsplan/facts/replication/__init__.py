"""Mirrors and sources as the servers of both ends show them."""
