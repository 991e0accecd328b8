"""What jsplan does, as visible sequences over the rooms: the Python API, free of click and rich."""
