"""Entries of buckets, objects and schedules in a plan: what the files own below a resource."""
