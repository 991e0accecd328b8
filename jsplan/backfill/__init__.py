"""Bulk copies of messages between streams, and into and out of archives."""
