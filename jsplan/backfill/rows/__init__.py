"""The rows of one side of a comparison: of a stream, an archive, or a transformed copy."""
