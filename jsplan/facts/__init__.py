"""Reads the world and never writes: who the domains are, live configurations, what else is there."""
