"""Parquet archives: reader, writer, log of commits."""
