"""Builds the status document: live domains, streams, consumers and flows."""
