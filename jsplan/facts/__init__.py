"""Reads from the servers: domains, live configurations, inventories. Never writes."""
