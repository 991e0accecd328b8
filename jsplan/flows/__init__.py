"""The flows of messages: what reaches which stream, by which path. Pure."""
